"""How the robust dialect takes a step where no loss can be evaluated again.

The next batch's gradient at the end of a step, times the step's direction, is the slope that is left
there. While some is left, steps grow; when it has turned, they shrink. See docs/theory.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from pesky import length
from pesky.torch.outcome import DIRECTION, TURNED, Outcome
from pesky.torch.passes.bundle import Bundle, Part, Start, set_finite
from pesky.torch.passes.eager import sample_of
from pesky.torch.passes.rows import RowsBundle
from pesky.torch.shards import sums_of
from pesky.torch.step import alarm, decay
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import Direction, direction_of, let_collect

__all__ = ["has_trouble", "start_anew", "step", "undo"]

# Where the slope has turned to so many times its size, the loss has risen by the slope times the step
# (were it a quadratic): as much as the step was to lower it.
_GROSS = 3.0
_FIRST = 1e-2  # scale, as no probe can tell: 1 would be that of parameters that do not interact
_AGAIN = 1.0  # the highest scale to start anew with: that of parameters that do not interact
_LAG = 10.0  # of the average slope over the present one, from which on it is made to forget
_KEPT = 0.8  # of it in a step, then


def has_trouble(collective: Collective, loss: float) -> bool:
    """Take in the loss of a fresh batch; return whether steps have run away or the data has changed."""
    if not isfinite(loss):
        return False
    if alarm.is_raised(collective, loss):
        alarm.rebase(collective)
        return True
    length.add_loss(collective, loss)
    return False


def start_anew(states: Iterable[dict[str, Any]], collective: Collective) -> None:
    """Forget where the last step went, and how long steps were, but for steps that are short enough.

    Which of both troubles it is, nobody can tell here; a scale that ran away must not be gone on with.
    """
    scale = collective.scale
    collective.start_anew()
    length.set_scale(collective, min(scale, _AGAIN))
    for state in states:
        state.pop("move", None)


def step(bundles: Sequence[Bundle | RowsBundle], start: Start, collective: Collective) -> Outcome:
    """Let every bundle collect or move."""
    moving, by_rows = let_collect(bundles, start)
    parts = [part for bundle in moving for part in bundle.parts]
    if collective.undoable == 0 or _follow(parts, collective):
        outcome = _move(moving, parts, collective)
    else:
        outcome = Outcome(skipped=TURNED)
    for bundle in by_rows:
        outcome = outcome.joined(bundle.advance(start))
    return outcome


def _move(bundles: Sequence[Bundle], parts: Sequence[Part], collective: Collective) -> Outcome:
    slowed = [part for part in parts if _lr(part) != 1]
    expected = {part.theta: part.state["mean_gradient"].clone() for part in slowed}
    collective.undoable = 0.0  # the direction of the last step is written over
    direction = direction_of(bundles, _buffer_of)
    if direction.slope == 0:
        return Outcome()
    if not 0 < direction.slope < inf:
        return Outcome(skipped=DIRECTION)
    if collective.scale == 0:
        length.set_scale(collective, _FIRST)
    slope, spared = _slopes(direction, expected)
    share = length.gentle_share(collective, slope)
    collective.last_slope, collective.spared_slope = share * slope, share * spared
    scale, held = share * collective.scale, False
    collective.count()
    distances = [_lr(part) * scale for part in direction.parts]
    shares = decay.shares_along(direction, distances)
    for part, value, distance in zip(direction.parts, direction.values, distances, strict=True):
        held |= _move_part(part, value, distance, shares.get(part, 0.0))
        part.state.update({"length": distance, "move": int(collective.averaged)})
    return Outcome(held=held)


def _move_part(part: Part, direction: Tensor, distance: float, share: float) -> bool:
    """Move a parameter along a direction and let a share of it decay; return whether entries stay.

    What decays is kept apart from the direction, along which the next slope is measured.
    """
    before = part.theta.to(direction.dtype)
    moved = before.add(direction, alpha=-distance)
    part.state.pop("decayed", None)
    if share > 0:
        part.state["decayed"] = share * before
        moved -= part.state["decayed"]
    return set_finite(part.theta, moved)


def _buffer_of(part: Part) -> Tensor:
    """Return where a direction is kept."""
    if "direction" not in part.state:
        part.state["direction"] = torch.empty_like(part.state["mean_gradient"])
    kept: Tensor = part.state["direction"]
    return kept


def _lr(part: Part) -> float:
    return float(part.group["lr"])


def _slopes(direction: Direction, expected: dict[Tensor, Tensor]) -> tuple[float, float]:
    """Return the slope along the step, and how much of it lr wants left at its end.

    Only a gradient that this batch has no part in can tell the latter: with the batch's own, noise
    would look like a slope, and a small lr like a step that is too long.
    """
    if not expected:
        return direction.slope, 0.0
    slopes, spared = {}, {}
    for part, value in zip(direction.parts, direction.values, strict=True):
        lr = _lr(part)
        slopes[part] = lr * _dot(sample_of(part, part.theta)[0], value)
        if lr != 1:
            spared[part] = lr * (1 - lr) * _dot(expected[part.theta], value)
    return _sum(slopes), _sum(spared)


def _follow(parts: Sequence[Part], collective: Collective) -> bool:
    """Let the scale follow what this batch's gradient says about the last step; False: it is undone."""
    slopes = {
        part: part.state["length"] / collective.scale * _dot(sample_of(part, part.theta)[0], value)
        for part in parts
        if (value := _last_direction(part.state, collective)) is not None
    }
    slope = collective.last_slope
    if not slopes or slope == 0:
        return True
    left = _sum(slopes) - collective.spared_slope
    _forget(collective, slope)
    collective.last_slope = 0.0  # until the next move, there is nothing more to learn from this one
    if left < -_GROSS * max(slope, collective.slope):
        shorter = length.followed_scale(collective.scale, left / slope)
        undo(((part.theta, part.state) for part in parts), collective)
        length.set_scale(collective, min(collective.scale, shorter))
        collective.next_slope = min(collective.next_slope, 0.0)
        return False
    length.follow(collective, slope, left)
    return True


def _forget(collective: Collective, slope: float) -> None:
    """Let earlier slopes count less where they were much larger: they would outweigh all new ones."""
    before = collective.slope
    if before > _LAG * slope:
        share = max(_KEPT, _LAG * slope / before)
        collective.slope *= share
        collective.next_slope *= share


def _last_direction(state: dict[str, Any], collective: Collective) -> Tensor | None:
    """Return where the last step moved a parameter; None if it did not."""
    return state.get("direction") if state.get("move") == int(collective.averaged) else None


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum()


def _sum(numbers: Mapping[Part, Tensor]) -> float:
    """Return the sum of what was found of each part."""
    here = torch.stack([one.double().cpu() for one in numbers.values()])
    spreads = [part.spread for part in numbers]
    if all(one is None for one in spreads):
        return float(here.sum())
    return sum(sums_of(here.tolist(), spreads))


@torch.no_grad()
def undo(states: Iterable[tuple[Tensor, dict[str, Any]]], collective: Collective) -> None:
    """Go back to before the last step, after which something was not finite."""
    if not length.restore(collective):
        return
    for parameter, state in states:
        direction = _last_direction(state, collective)
        if direction is not None:
            before = parameter.to(direction.dtype) + state["length"] * direction
            if "decayed" in state:
                before += state["decayed"]
            set_finite(parameter, before)
