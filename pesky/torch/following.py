"""How the robust dialect takes a step where no loss can be evaluated again.

The next batch's gradient at the end of a step, times the step's direction, is the slope that is left
there. While some is left, steps grow; when it has turned, they shrink. See docs/theory.md.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from pesky import collective as shared
from pesky.torch.collective import Collective
from pesky.torch.direction import direction_of, sort
from pesky.torch.eager import sample_of
from pesky.torch.parts import Batch, Part
from pesky.torch.rows import RowsBatch

__all__ = ["step", "undo"]


def step(
    batches: Sequence[Batch | RowsBatch], init_batches: int, slow_start: float, collective: Collective
) -> None:
    """Let every batch collect or move."""
    moving, by_rows = sort(batches, init_batches)
    parts = [part for batch in moving for part in batch.parts]
    if collective.moves > 0:
        _follow(parts, collective)
    direction = direction_of(moving)
    if 0 < direction.slope < inf:
        if collective.scale == 0:
            collective.numbers[shared.SCALE] = shared.PROBE
        collective.last_slope = direction.slope
        for part, value in zip(direction.parts, direction.values, strict=True):
            length = float(part.group["lr"]) * collective.scale
            part.theta.copy_(part.theta.to(value.dtype).add(value, alpha=-length))
            part.state.update({"direction": value, "length": length})
        collective.count()
    for batch in by_rows:
        batch.advance(init_batches, slow_start)


def _follow(parts: Sequence[Part], collective: Collective) -> None:
    """Let the scale follow what this batch's gradient says about the last step."""
    slopes = [
        (sample_of(part, part.theta)[0] * part.state["direction"]).sum()
        for part in parts
        if "direction" in part.state
    ]
    if slopes:
        next_slope = float(torch.stack([one.double().cpu() for one in slopes]).sum())
        shared.follow(collective.numbers, collective.last_slope, next_slope, _multiplier(parts))


def _multiplier(parts: Sequence[Part]) -> float:
    """Return the mean of lr over all entries."""
    entries = sum(part.theta.numel() for part in parts)
    return sum(float(part.group["lr"]) * part.theta.numel() for part in parts) / entries


@torch.no_grad()
def undo(states: Iterable[tuple[Tensor, dict[str, Any]]], collective: Collective) -> None:
    """Go back to before the last step, after which something was not finite."""
    if not shared.restore(collective.numbers):
        return
    for parameter, state in states:
        if "direction" in state:
            parameter.copy_(
                parameter.to(state["direction"].dtype) + state["length"] * state["direction"]
            )
