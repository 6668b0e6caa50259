"""One of several processes: `python -m tests.torch.shards.process folder rank count`."""

import sys
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from pesky.torch import processes
from tests.torch.shards.training import CASES, SAMPLES, found, model_of, optimizer_of, spread, train

SOME = ("measuring, words", "measuring, global", "following, words", "paper, block")
RUNS = {  # by the number of processes
    1: [("fsdp", name) for name in SOME],
    2: [*(("fsdp", name) for name in CASES), *(("ddp", name) for name in SOME)],
    4: [(how, name) for how in ("fsdp", "hsdp", "ddp") for name in SOME],
}
WAYS = ("fsdp", "ddp")
LOADED = {1: "fsdp", 2: "ddp"}  # how, by the number of processes, from what four have saved
SAVED = ("measuring", "measuring, block", "following", "following, decoupled", "paper", "paper, global")
SAVED_AFTER = 0.6  # of the steps
SPOILED = ("measuring", "following", "paper")
SPOILED_STEP = 15


def trained(how, name, mine, **which):
    case = CASES[name]
    net = spread(model_of(case.model), how)
    optimizer = optimizer_of(net, case)
    train(net, optimizer, case, mine, **which)
    return found(net, optimizer)


def saved(folder, name, mine):
    """Save in mid-run."""
    case = CASES[name]
    net = spread(model_of(case.model), "fsdp")
    optimizer = optimizer_of(net, case)
    train(net, optimizer, case, mine, last=int(SAVED_AFTER * case.steps))
    state = {"model": get_model_state_dict(net), "optimizer": get_optimizer_state_dict(net, optimizer)}
    checkpoint.save(state, checkpoint_id=folder / name)


def loaded(folder, name, how, mine):
    """Go on from what other processes have saved."""
    case = CASES[name]
    net = spread(model_of(case.model), how)
    optimizer = optimizer_of(net, case)
    state = {"model": get_model_state_dict(net), "optimizer": get_optimizer_state_dict(net, optimizer)}
    checkpoint.load(state, checkpoint_id=folder / name)
    set_model_state_dict(net, state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    train(net, optimizer, case, mine, first=int(SAVED_AFTER * case.steps))
    return found(net, optimizer)


def fails(how, rank, early=False):
    """Return what a process is told whose neighbour's closure raises an exception.

    If that is so early that it is waited for inside a module, connections are closed then.
    """
    net = spread(model_of("mlp"), how)
    optimizer = optimizer_of(net, CASES["measuring"])
    part = torch.zeros(2, 10, dtype=torch.float64)

    def loss():
        if early and rank == 1:
            raise ValueError("no such batch")
        output = net(part).square().mean()
        if rank == 1:
            raise ValueError("no such batch")
        return output

    try:
        optimizer.minimize(loss)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def explained(how):
    """Return the first line of what an optimizer explains, and how many parameters have a rate."""
    net = spread(model_of("mlp"), how)
    optimizer = optimizer_of(net, CASES["following"])
    train(net, optimizer, CASES["following"], slice(0, 2))
    rows = optimizer.explain().parameters
    return [len(rows), sum(row.rate is not None for row in rows), len(optimizer.rates())]


def messages(how, mine):
    """Return how many messages a step sends in which neither curvature nor the length is measured."""
    case = CASES["measuring"]
    net = spread(model_of(case.model), how)
    optimizer = optimizer_of(net, case)
    train(net, optimizer, case, mine, last=10)
    optimizer.counters |= {"measured": 400, "moves": 401}  # so many that both are rare
    sent = []
    send = distributed.all_reduce

    def counting(tensor, *args, **settings):
        sent.append(tensor.numel())
        return send(tensor, *args, **settings)

    with mock.patch.object(distributed, "all_reduce", counting):
        train(net, optimizer, case, mine, first=10, last=11)
    return len(sent)


def main(folder, rank, count):
    torch.set_num_threads(1)
    folder = Path(folder)
    distributed.init_process_group("gloo", f"file://{folder}/store{count}", rank=rank, world_size=count)
    size = SAMPLES // count
    mine = slice(size * rank, size * (rank + 1))
    results = {(how, name): trained(how, name, mine) for how, name in RUNS[count]}
    for name in SAVED:
        if count in LOADED:
            results["loaded", name] = loaded(folder, name, LOADED[count], mine)
        else:
            saved(folder, name, mine)
    results["explained", ""] = explained("fsdp")
    if count == 2:
        for how in WAYS:
            for name in SPOILED:
                spoil = SPOILED_STEP if rank == 1 else None
                results[f"spoiled {how}", name] = trained(how, name, mine, spoil=spoil)
            results[f"messages {how}", ""] = messages(how, mine)
            results[f"failing {how}", ""] = fails(how, rank)
        with mock.patch.object(processes, "_PATIENCE", timedelta(seconds=2)):
            results["failing early", ""] = fails("fsdp", rank, early=True)
    torch.save(results, folder / f"{count}-{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
