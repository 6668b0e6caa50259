"""One of two processes that train together: `python -m tests.torch.data_parallel folder rank`."""

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
CASES = {
    "element": {},
    "block": {"granularity": "block"},
    "global": {"granularity": "global"},
    "every": {"curvature_every": 3},
    "watch": {},
    "no curvature": {},
}


def loss_of(case, output, y):
    if case == "no curvature":
        return l1_loss(output[:, 0], y.float())
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
    if case == "watch":
        optimizer.watch(criterion)
    for step, (x, y) in enumerate(batches(STEPS)):
        optimizer.zero_grad()
        loss = criterion(net(x[mine]), y[mine])
        loss.backward() if case == "watch" else optimizer.backward(loss)
        if step == spoil:
            next(iter(optimizer._pending.values.values())).fill_(float("nan"))
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()], dict(optimizer.counters["skipped"])


def main(folder, rank):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    half = slice(4 * rank, 4 * rank + 4)
    found = {case: train(case, DistributedDataParallel(model()), half) for case in CASES}
    # Only the first process has a bad curvature; both must skip the step.
    spoil = 20 if rank == 0 else None
    found["spoiled"] = train("element", DistributedDataParallel(model()), half, spoil)
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
