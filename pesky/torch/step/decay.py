"""Decoupled weight decay: a step that is taken also pulls parameters towards zero, as in AdamW.

There an entry changes by about its rate in a step, and decay takes rate * weight_decay of it. Here the
size of a step, its root mean square over a parameter group, stands for the rate. See docs/theory.md.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, sqrt

import torch
from torch import Tensor

from pesky.torch.passes import grouped
from pesky.torch.passes.bundle import Part, statistics_type
from pesky.torch.passes.extent import Extent, set_finite, step_within
from pesky.torch.passes.pieces import sum_of_squares
from pesky.torch.passes.reading import Reading
from pesky.torch.settings import decoupled_of
from pesky.torch.step.direction import Direction, Leg

__all__ = ["copies_of", "include", "pull", "shares_along"]


def include(direction: Direction, scales: Sequence[float]) -> list[float]:
    """Make decay of the iterates a part of the step; return the scales that the direction then has.

    What decays has all of its step for a direction, and the scale 1.
    """
    shares = shares_along(direction, scales)
    scale_of = dict(zip(direction.parts, scales, strict=True))
    for number, (bundle, directed) in enumerate(direction.legs):
        taken = [shares.get(part) for part in bundle.parts]
        if taken != [None] * len(taken):
            factors = [scale_of[part] for part in bundle.parts]
            direction.legs[number] = Leg(bundle, bundle.mixed(directed, factors, taken))
    return [
        1.0 if part in shares else scale for part, scale in zip(direction.parts, scales, strict=True)
    ]


def shares_along(direction: Direction, scales: Sequence[float]) -> dict[Part, float]:
    """Return what share of each part a step along a direction takes off it, if any."""
    steps = zip(direction.parts, direction.values, scales, direction.extents, strict=True)
    return _shares(
        {
            part: sum_of_squares(value, scale) if extent is None else scale * scale * extent.square
            for part, value, scale, extent in steps
            if decoupled_of(part.group) > 0
        }
    )


def copies_of(parts: Sequence[Part]) -> dict[Part, Tensor]:
    """Return those parameters that decay as they are, for `pull` to see what a step changes."""
    decaying = [part for part in parts if decoupled_of(part.group) > 0]
    if not decaying or decaying[0].theta.is_cpu:
        return {
            part: part.theta.detach().to(statistics_type(part.theta), copy=True) for part in decaying
        }
    thetas = [part.theta for part in decaying]
    wide = grouped.widened(thetas, [part.state["mean_gradient"] for part in decaying])
    copies = wide if wide[0] is not thetas[0] else torch._foreach_clone(wide)
    return dict(zip(decaying, copies, strict=True))


def pull(before: Mapping[Part, Tensor]) -> bool:
    """Let parameters decay after a step, by as much as it changed them, rounding included.

    Entries that would not be finite stay; return whether there are any.
    """
    near = {part: copy for part, copy in before.items() if part.theta.is_cpu}
    shares = _shares({part: sum_of_squares(part.theta - copy) for part, copy in near.items()})
    held = [set_finite(part.theta, part.theta - share * near[part]) for part, share in shares.items()]
    far = {part: copy for part, copy in before.items() if part not in near}
    return _pull_elsewhere(far) or any(held)


def _pull_elsewhere(before: Mapping[Part, Tensor]) -> bool:
    """Do as `pull` in grouped operations, after one wait for the sizes of steps."""
    alike: dict[tuple[torch.dtype, torch.device], list[Part]] = {}
    for part in before:
        alike.setdefault((part.theta.dtype, part.theta.device), []).append(part)
    reading = Reading()
    sizes = []
    for parts in alike.values():
        copies = [before[part] for part in parts]
        changes = torch._foreach_sub(grouped.widened([part.theta for part in parts], copies), copies)
        reach = reading.expect(grouped.norms(copies, inf))
        sizes.append((parts, reading.expect(grouped.norms(changes, 2)), reach))
    powers = {
        part: size * size
        for parts, found, _ in sizes
        for part, size in zip(parts, found.get(), strict=True)
    }
    shares = _shares(powers)
    held = False
    for parts, found, reaches in sizes:
        copies = [before[part] for part in parts]
        thetas = [part.theta for part in parts]
        taken = [shares.get(part, 0.0) for part in parts]
        # Where a step ended is at most its size away from where it began.
        known = zip(reaches.get(), found.get(), strict=True)
        extents = [Extent(reach, inf, reach + size) for reach, size in known]
        held |= step_within(thetas, grouped.widened(thetas, copies), copies, taken, extents)
    return held


def _shares(powers: Mapping[Part, float]) -> dict[Part, float]:
    """Return the share of each part that decays, from the sums of squares of steps.

    A step that has no finite size, as where parameters have none, is nothing to decay by.
    """
    members: dict[int, list[Part]] = {}
    for part in powers:
        members.setdefault(id(part.group), []).append(part)
    shares: dict[Part, float] = {}
    for parts in members.values():
        entries = sum(part.theta.numel() for part in parts)
        share = decoupled_of(parts[0].group) * sqrt(sum(powers[part] for part in parts) / entries)
        if isfinite(share):
            shares |= dict.fromkeys(parts, min(share, 1.0))
    return shares
