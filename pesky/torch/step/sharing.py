"""Rates that tensors share: one a tensor (vSGD-b), or one a group of them (vSGD-g)."""

from collections.abc import Sequence

import numpy as np
import torch

from pesky.torch.passes import kernels
from pesky.torch.passes.bundle import Bundle, Part, Sums, statistics_type
from pesky.torch.step.levels import has_level, level_of
from pesky.torch.step.parts import State

__all__ = ["memories_of", "owner_of", "shared_rates"]


def owner_of(part: Part) -> State:
    """Whatever holds memory, power and rate of a part that shares its rate."""
    owner: State = part.group["shared"] if part.group["granularity"] == "global" else part.state
    return owner


def memories_of(bundle: Bundle) -> list[float]:
    """Return the memory of each part's rate."""
    return [owner_of(part)["memory"] for part in bundle.parts]


def shared_rates(bundles: Sequence[Bundle], slowed: bool = False) -> list[list[float]]:
    """Take a sample into the averages of tensors that share rates; return each one's rate."""
    members: dict[int, list[tuple[Part, Sums]]] = {}
    for bundle in bundles:
        sums = bundle.average(memories_of(bundle), slowed)
        for part, of_part in zip(bundle.parts, sums, strict=True):
            members.setdefault(id(owner_of(part)), []).append((part, of_part))
    for sharing in members.values():
        _conclude(sharing)
    return [[owner_of(part)["rate"] for part in bundle.parts] for bundle in bundles]


def _conclude(sharing: Sequence[tuple[Part, Sums]]) -> None:
    part = sharing[0][0]
    owner = owner_of(part)
    double = any(statistics_type(part.theta) == torch.float64 for part, _ in sharing)
    signals, squares, largest = zip(*(sums for _, sums in sharing), strict=True)
    kind = np.float64 if double else np.float32
    power = min(owner["power"], float(np.finfo(kind).max))  # which may come from a wider type
    floor = max(_least_curvature(part) for part, _ in sharing)
    numbers = (sum(signals), sum(squares), max(largest), power, owner["memory"], floor)
    found = map(float, kernels.conclude(*map(kind, numbers)))
    owner["rate"], owner["power"], owner["memory"], owner["signal"] = found


def _least_curvature(part: Part) -> float:
    """Return what the curvature of a part is at least; in the robust dialect, that is all of it."""
    return level_of(part.state, part.group).curvature if has_level(part.state) else part.floor
