"""Processes that train together: which there are, and numbers that all of them must agree on.

Whatever a step decides on is such a number. Each call of a function here is one message, if there is a
group; all processes of it have to make the call, in the same order.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

__all__ = [
    "is_distributed",
    "largest_over",
    "process_group",
    "size_of",
    "sum_unless_failed",
    "sums_over",
]

_PATIENCE = timedelta(seconds=20)


def is_distributed() -> bool:
    """Whether this is one of several processes, or of a group of one."""
    return distributed.is_available() and distributed.is_initialized()


def process_group(setting: Any) -> Any:
    """Return the group to average over: None where there is nothing to do.

    `setting` is None for all processes (if there are any), False for none of them, or a group.
    """
    if setting is False or not is_distributed():
        return None
    group = distributed.group.WORLD if setting is None else setting
    return group if size_of(group) > 1 else None


def size_of(group: Any) -> int:
    """Return the number of processes in a group; 1 for None."""
    return 1 if group is None else distributed.get_world_size(group)


def sums_over(numbers: Sequence[float], group: Any) -> list[float]:
    """Return the sums of every process's numbers, with the same bits for all."""
    return _reduced(numbers, group, "sum")


def largest_over(numbers: Sequence[float], group: Any) -> list[float]:
    """Return the largest of every process's numbers."""
    return _reduced(numbers, group, "max")


def sum_unless_failed(compute: Callable[[], float], group: Any) -> float:
    """Return the sum of what processes compute; if that raises an exception in one, it does in all.

    Without it others would wait for ever. The one that fails waits for them a while only. They may be
    elsewhere, in a message of their own, which ends when this one gives up and closes its connections.
    """
    if group is None:
        return compute()
    try:
        number = compute()
    except Exception:
        with suppress(RuntimeError):
            options = distributed.AllreduceOptions()
            options.timeout = _PATIENCE  # after which the process can end, too
            group.allreduce([_message([0.0, 1.0], group)], options).wait()
        raise
    total, failed = sums_over([number, 0.0], group)
    if failed:
        raise RuntimeError(
            "the loss could not be computed in another one of the processes that train together, whose "
            "output says why: this step is not taken"
        )
    return total


def _reduced(numbers: Sequence[float], group: Any, how: str) -> list[float]:
    if group is None or not numbers:
        return list(numbers)
    operation = distributed.ReduceOp.SUM if how == "sum" else distributed.ReduceOp.MAX
    message = _message(numbers, group)
    distributed.all_reduce(message, operation, group=group)
    found: list[float] = message.tolist()
    return found


def _message(numbers: Sequence[float], group: Any) -> Tensor:
    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    return torch.tensor(numbers, dtype=torch.float64, device=device)
