"""Data-parallel training: every process must see the same curvature, as it sees the same gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from pesky.torch.parts import Part

__all__ = ["average_curvature", "mean_of", "process_group"]


def process_group(setting: Any) -> Any:
    """Return the group to average over: None where there is nothing to do.

    `setting` is None for all processes (if there are any), False for none of them, or a group.
    """
    if setting is False or not distributed.is_available() or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD if setting is None else setting
    return group if distributed.get_world_size(group) > 1 else None


def average_curvature(parts: Sequence[Part], loss: float, group: Any) -> float:
    """Replace every part's curvature by the mean over processes; return the mean of `loss`, too.

    All travels in one message. A part that no process has a curvature for stays without.
    """
    device = parts[0].theta.device
    double = any(part.theta.dtype == torch.float64 for part in parts)
    kind = torch.float64 if double else torch.float32
    pieces, there = [], []
    for part in parts:
        there.append(float(part.curvature is not None))
        value = torch.zeros_like(part.gradient) if part.curvature is None else part.curvature
        pieces.append(value.reshape(-1).to(device, kind))
    message = torch.cat([*pieces, torch.tensor([*there, loss], dtype=kind, device=device)])
    distributed.all_reduce(message, group=group)
    message /= distributed.get_world_size(group)
    *pieces, ends = torch.split(message, [*(piece.numel() for piece in pieces), len(parts) + 1])
    *shares, loss = ends.tolist()
    for part, piece, share in zip(parts, pieces, shares, strict=True):
        if share > 0:
            like = part.gradient
            dtype = torch.promote_types(like.dtype, torch.float32)
            part.curvature = piece.reshape(like.shape).to(like.device, dtype)
    return loss


def mean_of(number: float, group: Any) -> float:
    """Return the mean of every process's number, the same for all."""
    message = torch.tensor([number], dtype=torch.float64, device=_device_of(group))
    distributed.all_reduce(message, group=group)
    return float(message) / distributed.get_world_size(group)


def _device_of(group: Any) -> str:
    return "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
