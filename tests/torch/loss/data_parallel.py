"""One of two processes that train together: `python -m tests.torch.loss.data_parallel folder rank`."""

import sys
import warnings
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy, l1_loss
from torch.nn.parallel import DistributedDataParallel

from pesky.torch import VSGD
from tests.torch.loops import batches, model

STEPS = 30
PAPER = {"dialect": "paper"}
CASES = {
    "element": PAPER,
    "block": {"granularity": "block", **PAPER},
    "global": {"granularity": "global", **PAPER},
    "every": {"curvature_every": 3, **PAPER},
    "watch": PAPER,
    "no curvature": PAPER,
    "following": {},
    "following, block": {"granularity": "block"},
    "following, watch": {},
    "following, no curvature": {},
    "measuring": {},
    "measuring, block": {"granularity": "block"},
    "measuring, every": {"curvature_every": 3},
    "measuring, by hand": {"weight_decay": 0.01},
    "measuring, watch": {},
    "measuring, watch, clip": {},
}


SPOILED = {
    "element": "curvature not finite",
    "following": "curvature not finite",
    "measuring": "loss not finite",
}


def model_of(case):
    """Return the model; in float64 where losses are evaluated again, as differences amplify rounding."""
    return model(dtype=torch.float64) if "measuring" in case else model()


def loss_of(case, output, y):
    if "no curvature" in case:
        return l1_loss(output[:, 0], y.to(output.dtype))
    return cross_entropy(output, y)


class Criterion(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.case = case

    def forward(self, output, y):
        return loss_of(self.case, output, y)


def train(case, net, mine, spoil=None):
    """Train on this process's part of every batch; return parameters and the optimizer."""
    warnings.filterwarnings("ignore", message=".*no curvature of its own")
    optimizer = VSGD(net.parameters(), **CASES[case])
    criterion = Criterion(case)
    if "measuring, watch" in case:
        optimizer.watch(net, criterion)
    elif "watch" in case:
        optimizer.watch(criterion)
    dtype = next(net.parameters()).dtype
    for step, (x, y) in enumerate(batches(STEPS)):
        x = x.to(dtype)

        def loss(x=x[mine], y=y[mine], factor=float("nan") if step == spoil else 1.0):
            return factor * criterion(net(x), y)

        if case in ("measuring", "measuring, block", "measuring, every"):
            optimizer.minimize(loss)
            continue
        optimizer.zero_grad()
        if "watch" in case:
            criterion(net(x[mine]), y[mine]).backward()
            if "clip" in case:
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        elif case == "measuring, by hand":
            optimizer.backward(loss(), again=loss)
        else:
            optimizer.backward(criterion(net(x[mine]), y[mine]))
        if step == spoil:
            next(iter(optimizer._pending.values.values())).fill_(float("nan"))
        optimizer.step()
    assert optimizer.counters["form"] == (
        case.split(",")[0] if optimizer.dialect == "robust" else "paper"
    )
    return [p.detach().clone() for p in net.parameters()], dict(optimizer.counters["skipped"])


def main(folder, rank):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    half = slice(4 * rank, 4 * rank + 4)
    found = {case: train(case, DistributedDataParallel(model_of(case)), half) for case in CASES}
    # Only the first process has a bad curvature, or a bad loss; both must skip the step.
    spoil = 20 if rank == 0 else None
    for case in SPOILED:
        found[f"spoiled {case}"] = train(case, DistributedDataParallel(model_of(case)), half, spoil)
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
