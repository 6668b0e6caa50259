"""Data-parallel training: which processes there are, and what all of them must agree on."""

from typing import Any

import torch
from torch import distributed

__all__ = ["mean_of", "process_group"]


def process_group(setting: Any) -> Any:
    """Return the group to average over: None where there is nothing to do.

    `setting` is None for all processes (if there are any), False for none of them, or a group.
    """
    if setting is False or not distributed.is_available() or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD if setting is None else setting
    return group if distributed.get_world_size(group) > 1 else None


def mean_of(number: float, group: Any) -> float:
    """Return the mean of every process's number, the same for all."""
    message = torch.tensor([number], dtype=torch.float64, device=_device_of(group))
    distributed.all_reduce(message, group=group)
    return float(message) / distributed.get_world_size(group)


def _device_of(group: Any) -> str:
    return "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
