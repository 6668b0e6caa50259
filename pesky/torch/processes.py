"""Processes that train together: which there are, and numbers that all of them must agree on.

Whatever a step decides on is such a number. Each call of `sums_over` and `largest_over` is one message;
all processes of the group have to make it, in the same order.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

__all__ = ["is_distributed", "largest_over", "mean_of", "process_group", "size_of", "sums_over"]


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


def mean_of(number: float, group: Any) -> float:
    """Return the mean of every process's number, the same for all."""
    (total,) = sums_over([number], group)
    return total / size_of(group)


def _reduced(numbers: Sequence[float], group: Any, how: str) -> list[float]:
    if group is None or not numbers:
        return list(numbers)
    operation = distributed.ReduceOp.SUM if how == "sum" else distributed.ReduceOp.MAX
    message = torch.tensor(numbers, dtype=torch.float64, device=_device_of(group))
    distributed.all_reduce(message, operation, group=group)
    found: list[float] = message.tolist()
    return found


def _device_of(group: Any) -> str:
    return "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
