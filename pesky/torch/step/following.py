"""How the robust dialect takes a step where no loss can be evaluated again.

The next batch's gradient at the end of a step, times the step's direction, is the slope that is left
there. While some is left, steps grow; when it has turned, they shrink. See docs/theory.md.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from pesky import length
from pesky.torch.outcome import DIRECTION, TURNED, Outcome
from pesky.torch.passes.bundle import Bundle, Part, Start
from pesky.torch.passes.eager import EagerBundle
from pesky.torch.passes.extent import set_finite
from pesky.torch.passes.rows import RowsBundle
from pesky.torch.passes.single import total
from pesky.torch.step import decay
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import Direction, direction_of, let_collect

__all__ = ["foresee", "step", "undo"]

# Where the slope has turned to so many times its size, the loss has risen by the slope times the step
# (were it a quadratic): as much as the step was to lower it.
_GROSS = 3.0
_FIRST = 1e-2  # scale, as no probe can tell: 1 would be that of parameters that do not interact
_LAG = 10.0  # of the average slope over the present one, from which on it is made to forget
_KEPT = 0.8  # of it in a step, then


def step(bundles: Sequence[Bundle | RowsBundle], start: Start, collective: Collective) -> Outcome:
    """Let every bundle collect or move."""
    moving, by_rows = let_collect(bundles, start)
    if collective.undoable == 0 or _follow(moving, collective):
        outcome = _move(moving, collective)
    else:
        outcome = Outcome(skipped=TURNED)
    for bundle in by_rows:
        outcome = outcome.joined(bundle.advance(start))
    return outcome


def _move(bundles: Sequence[Bundle], collective: Collective) -> Outcome:
    slowed = any(_lr(part) != 1 for bundle in bundles for part in bundle.parts)
    collective.undoable = 0.0  # the direction of the last step is written over
    direction = direction_of(bundles, _buffer_of, slowed)
    for part, value in zip(direction.parts, direction.values, strict=True):
        part.state["direction"] = value
    if direction.slope == 0:
        return Outcome()
    if not 0 < direction.slope < inf:
        return Outcome(skipped=DIRECTION)
    if collective.scale == 0:
        length.set_scale(collective, _FIRST)
    slope, spared = _slopes(direction) if slowed else (direction.slope, 0.0)
    share = length.gentle_share(collective, slope)
    collective.last_slope, collective.spared_slope = share * slope, share * spared
    scale, held = share * collective.scale, False
    collective.count()
    shares = decay.shares_along(direction, [_lr(part) * scale for part in direction.parts])
    for bundle, directed in direction.legs:
        distances = [_lr(part) * scale for part in bundle.parts]
        held |= bundle.go(directed, distances, [shares.get(part, 0.0) for part in bundle.parts])
        for part, distance in zip(bundle.parts, distances, strict=True):
            part.state.update({"length": distance, "move": int(collective.averaged)})
    return Outcome(held=held)


def _buffer_of(part: Part) -> Tensor:
    """Return where a direction is kept."""
    if "direction" not in part.state:
        part.state["direction"] = torch.empty_like(part.state["mean_gradient"])
    kept: Tensor = part.state["direction"]
    return kept


def _lr(part: Part) -> float:
    return float(part.group["lr"])


def _slopes(direction: Direction) -> tuple[float, float]:
    """Return the slope along the step, and how much of it lr wants left at its end.

    Only a gradient that this batch has no part in can tell the latter: with the batch's own, noise
    would look like a slope, and a small lr like a step that is too long.
    """
    slowed = [one for leg in direction.legs for one in leg.directed.slowed or []]
    spared = [left for part, (_, left) in zip(direction.parts, slowed, strict=True) if _lr(part) != 1]
    return total([slope for slope, _ in slowed]), total(spared)


def _follow(bundles: Sequence[Bundle], collective: Collective) -> bool:
    """Let the scale follow what this batch's gradient says about the last step; False: it is undone."""
    slopes = [one for bundle in bundles for one in _slopes_left(bundle, collective)]
    slope = collective.last_slope
    if not slopes or slope == 0:
        return True
    left = total(slopes) - collective.spared_slope
    _forget(collective, slope)
    collective.last_slope = 0.0  # until the next move, there is nothing more to learn from this one
    if left < -_GROSS * max(slope, collective.slope):
        shorter = length.followed_scale(collective.scale, left / slope)
        undo(((part.theta, part.state) for bundle in bundles for part in bundle.parts), collective)
        length.set_scale(collective, min(collective.scale, shorter))
        collective.next_slope = min(collective.next_slope, 0.0)
        return False
    length.follow(collective, slope, left)
    return True


def _slopes_left(bundle: Bundle, collective: Collective) -> list[float]:
    """Return each part's slope at the end of the last step, if that moved it."""
    factors = [part.state.get("length", 0.0) / collective.scale for part in bundle.parts]
    return bundle.slopes(_last_directions(bundle, collective), factors)


def foresee(bundles: Sequence[Bundle | RowsBundle], collective: Collective) -> None:
    """Let bundles that can do so compute the slopes that `step` will ask for."""
    for bundle in bundles:
        if isinstance(bundle, EagerBundle) and collective.undoable > 0:
            bundle.begin_slopes(_last_directions(bundle, collective))


def _last_directions(bundle: Bundle, collective: Collective) -> list[Tensor | None]:
    return [_last_direction(part.state, collective) for part in bundle.parts]


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


@torch.no_grad()
def undo(states: Iterable[tuple[Tensor, dict[str, Any]]], collective: Collective) -> None:
    """Go back to before the last step, after which something was not finite."""
    if not length.restore(collective):
        return
    for parameter, state in states:
        direction = _last_direction(state, collective)
        if direction is not None and parameter.requires_grad:
            before = parameter.to(direction.dtype) + state["length"] * direction
            if "decayed" in state:
                before += state["decayed"]
            set_finite(parameter, before)
