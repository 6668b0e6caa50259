"""Data-parallel training: every process must see the same curvature, as it sees the same gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from pesky.torch.passes.bundle import Part

__all__ = ["average_curvature"]


def average_curvature(parts: Sequence[Part], losses: Sequence[float], group: Any) -> list[float]:
    """Replace every part's curvature by the mean over processes; return means of `losses`, too.

    All travels in one message. A part that no process has a curvature for stays without. What is cut
    has been averaged where it was measured, as gradients are.
    """
    device = parts[0].theta.device
    double = any(part.theta.dtype == torch.float64 for part in parts)
    kind = torch.float64 if double else torch.float32
    parts = [part for part in parts if part.spread is None or not part.spread.is_cut]
    pieces, there = [], []
    for part in parts:
        there.append(float(part.curvature is not None))
        value = torch.zeros_like(part.gradient) if part.curvature is None else part.curvature
        pieces.append(value.reshape(-1).to(device, kind))
    message = torch.cat([*pieces, torch.tensor([*there, *losses], dtype=kind, device=device)])
    distributed.all_reduce(message, group=group)
    message /= distributed.get_world_size(group)
    *pieces, ends = torch.split(
        message, [*(piece.numel() for piece in pieces), len(parts) + len(losses)]
    )
    numbers = ends.tolist()
    shares = numbers[: len(parts)]
    for part, piece, share in zip(parts, pieces, shares, strict=True):
        if share > 0:
            like = part.gradient
            dtype = torch.promote_types(like.dtype, torch.float32)
            part.curvature = piece.reshape(like.shape).to(like.device, dtype)
    return numbers[len(parts) :]
