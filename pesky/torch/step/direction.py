"""The direction of a robust step: the paper's, with curvatures from the levels of tensors."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pesky import rule
from pesky.torch.passes.bundle import Bundle, Part, Start
from pesky.torch.passes.eager import sample_of
from pesky.torch.passes.rows import RowsBundle
from pesky.torch.shards import sums_of
from pesky.torch.step.levels import level_of, remember, take_levels
from pesky.torch.step.parts import count, is_collecting
from pesky.torch.step.sharing import shared_rates
from pesky.torch.step.start import collect

__all__ = ["Direction", "Sorted", "direction_of", "let_collect"]


class Direction(NamedTuple):
    """Where to move, and the sum of gradient times direction."""

    parts: list[Part]
    values: list[Tensor]
    slope: float


class Sorted(NamedTuple):
    """Bundles by what a step does with them."""

    moving: list[Bundle]
    by_rows: list[RowsBundle]  # sparse gradients: these follow the paper's rule, row by row


def let_collect(bundles: Sequence[Bundle | RowsBundle], start: Start) -> Sorted:
    """Let bundles collect that have initial batches to see; return the others."""
    plain = start._replace(factor=1.0, even=False)
    memory = max(rule.START_MEMORY, float(start.batches))
    moving: list[Bundle] = []
    by_rows: list[RowsBundle] = []
    for bundle in bundles:
        if isinstance(bundle, RowsBundle):
            by_rows.append(bundle)
        elif is_collecting(bundle.parts[0].state, start.batches):
            collect(bundle, plain, memory)
        else:
            moving.append(bundle)
            count(bundle)
    return Sorted(moving, by_rows)


def direction_of(bundles: Sequence[Bundle], buffer_of: Callable[[Part], Tensor]) -> Direction:
    """Take this step's samples into the averages, and write the direction into parts' buffers."""
    elements = [bundle for bundle in bundles if bundle.parts[0].group["granularity"] == "element"]
    sharing = [bundle for bundle in bundles if bundle.parts[0].group["granularity"] != "element"]
    parts: list[Part] = []
    values: list[Tensor] = []
    slope = 0.0
    moving = [part for bundle in bundles for part in bundle.parts]
    take_levels(moving)
    for part in moving:
        part.curvature = None  # its memory is free for the direction
    for bundle in elements:
        buffers = [buffer_of(part) for part in bundle.parts]
        found = bundle.direct([level_of(part.state, part.group) for part in bundle.parts], buffers)
        slope += found.slope
        for part, *means in zip(bundle.parts, found.signals, found.mean_squares, strict=True):
            remember(part.state, *means)
        parts += bundle.parts
        values += buffers
    shared = shared_rates(sharing) if sharing else []
    slopes, sharers = [], [part for bundle in sharing for part in bundle.parts]
    for part, rate in zip(sharers, [rate for rates in shared for rate in rates], strict=True):
        gradient, _ = sample_of(part, part.theta)
        values.append(torch.mul(gradient, rate, out=buffer_of(part)))
        slopes.append(rate * float((gradient * gradient).sum()))
    for of_part in sums_of(slopes, [part.spread for part in sharers]):
        slope += of_part
    return Direction(parts + sharers, values, slope)
