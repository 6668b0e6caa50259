"""The direction of a robust step: the paper's, with curvatures at least their tensor's mean."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pesky import rule
from pesky.torch import paper
from pesky.torch.eager import sample_of
from pesky.torch.parts import Batch, Part, Start
from pesky.torch.rows import RowsBatch

__all__ = ["Direction", "Sorted", "direction_of", "sort"]


class Direction(NamedTuple):
    """Where to move, and the sum of gradient times direction."""

    parts: list[Part]
    values: list[Tensor]
    slope: float


class Sorted(NamedTuple):
    """Batches by what a step does with them."""

    moving: list[Batch]
    by_rows: list[RowsBatch]  # sparse gradients: these follow the paper's rule, row by row


def sort(batches: Sequence[Batch | RowsBatch], start: Start) -> Sorted:
    """Let those collect that have initial batches to see; return the others."""
    plain = start._replace(factor=1.0, even=False)
    memory = max(rule.START_MEMORY, float(start.batches))
    moving: list[Batch] = []
    by_rows: list[RowsBatch] = []
    for batch in batches:
        if isinstance(batch, RowsBatch):
            by_rows.append(batch)
        elif paper.is_collecting(batch.parts[0].state, start.batches):
            paper.collect(batch, plain, memory)
        else:
            moving.append(batch)
            paper.count(batch)
    return Sorted(moving, by_rows)


def direction_of(batches: Sequence[Batch], buffer_of: Callable[[Part], Tensor]) -> Direction:
    """Take this step's samples into the averages, and write the direction into parts' buffers."""
    elements = [batch for batch in batches if batch.parts[0].group["granularity"] == "element"]
    sharing = [batch for batch in batches if batch.parts[0].group["granularity"] != "element"]
    parts: list[Part] = []
    values: list[Tensor] = []
    slope = 0.0
    for batch in elements:
        buffers = [buffer_of(part) for part in batch.parts]
        if all(part.curvature is None and "trusted" in part.state for part in batch.parts):
            slope += batch.learn_and_direct(_floors(batch), buffers)
        else:
            for part, total in zip(batch.parts, batch.learn(), strict=True):
                part.state["trusted"] = total / part.theta.numel()
            slope += batch.direct(_floors(batch), buffers)
        parts += batch.parts
        values += buffers
    for batch, rates in zip(sharing, paper.shared_rates(sharing), strict=True):
        for part, rate in zip(batch.parts, rates, strict=True):
            gradient, _ = sample_of(part, part.theta)
            parts.append(part)
            values.append(torch.mul(gradient, rate, out=buffer_of(part)))
            slope += rate * float((gradient * gradient).sum())
    return Direction(parts, values, slope)


def _floors(batch: Batch) -> list[float]:
    """Return lower bounds: an entry's curvature below its tensor's mean is not believed."""
    return [max(part.floor, part.state["trusted"]) for part in batch.parts]
