"""A robust step whose length is measured: the form of `minimize`, in the words of docs/theory.md.

1. Trouble: if the last step raised the loss of this batch grossly, or losses have risen for a while
   because steps ran away, the average of the iterates is gone back to; or the data has changed.
2. Direction: the paper's step p, with curvatures below their tensor's mean raised to it.
3. Length: the scale a for which the loss along -a p is lowest, from losses at the end of steps.
4. Caution: the share of it that is used, from comparing the iterate with the average of the iterates.
5. Take the iterate into the average, and move on from it.
"""

from collections.abc import Sequence
from math import inf, isfinite
from typing import NamedTuple

import torch

from pesky import length
from pesky.torch.loss.again import Losses
from pesky.torch.outcome import ASTRAY, DIRECTION, HIGHER, NO_REPEAT, NOT_FINITE, NOTHING_HELPS, Outcome
from pesky.torch.passes.bundle import Bundle, Start
from pesky.torch.passes.rows import RowsBundle
from pesky.torch.passes.single import sample_of
from pesky.torch.step import alarm, decay
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import Direction, direction_of, let_collect
from pesky.torch.step.places import Places

__all__ = ["step", "trouble"]


def trouble(losses: Losses, collective: Collective, places: Places) -> Outcome:
    """Tell whether this batch can be learnt from, and whether the last step is to be undone.

    That is so if the last step raised the loss of this batch, which it had not seen, grossly, or if
    several of them raised losses by more than chance and the average of the iterates is free of that.
    """
    is_finite = isfinite(losses.first)
    if not is_finite or length.is_suspicious(collective, losses.first):
        if collective.undoable > 0:
            losses.repeat_first()
            places.go("average")
            of_average = losses.again()
            places.go("iterate")
            if length.is_accident(collective, losses.first, of_average):
                return Outcome(skipped=HIGHER if is_finite else NOT_FINITE, undo=True)
        if not is_finite:
            return Outcome(skipped=NOT_FINITE)
    outcome = (
        _after_alarm(losses, collective, places)
        if alarm.is_raised(collective, losses.first)
        else Outcome()
    )
    if outcome.skipped is None and not outcome.changed:
        length.add_loss(collective, losses.first)
    return outcome


def _after_alarm(losses: Losses, collective: Collective, places: Places) -> Outcome:
    """Find out from the average whether steps or the data raised the losses of fresh batches."""
    alarm.rebase(collective)
    losses.repeat_first()
    places.go("average")
    of_average = losses.again()
    places.go("iterate")
    if alarm.has_run_away(collective, losses.first, of_average):
        return Outcome(skipped=ASTRAY, undo=True)
    return Outcome(changed=True)


def step(
    bundles: Sequence[Bundle | RowsBundle],
    start: Start,
    losses: Losses,
    collective: Collective,
    places: Places,
    interval: int,
    is_due: bool,
) -> Outcome:
    """Let every bundle collect or move; one of `interval` steps measures its length, if it `is_due`."""
    collective.interval = float(interval)
    moving, by_rows = let_collect(bundles, start)
    for part in [part for bundle in moving for part in bundle.parts]:
        places.begin(part)
    direction = direction_of(moving, places.buffer_of)
    outcome = Outcome()
    if 0 < direction.slope < inf:
        outcome = _Step(direction, losses, collective, places).take(is_due)
    elif direction.slope != 0:
        outcome = Outcome(skipped=DIRECTION)
    if by_rows:
        places.go("iterate")
    for bundle in by_rows:
        outcome = outcome.joined(bundle.advance(start))
    return outcome


class _Step(NamedTuple):
    """A step along a direction. Methods that find no step to take return the reason."""

    direction: Direction
    losses: Losses
    collective: Collective
    places: Places

    def take(self, is_due: bool) -> Outcome:
        """Set the length, by a measurement if that is due, and move."""
        if self.collective.scale == 0 and not is_due:  # nothing is known yet
            self.losses.repeat_first()
            is_due = True
        reason = self._measure() if is_due else self._trust()
        if reason is not None:
            return Outcome(skipped=reason)
        distance = length.length_of(self.collective)
        scales = [float(part.group["lr"]) * distance for part in self.direction.parts]
        scales = decay.include(self.direction, scales)
        return Outcome(held=self.places.move(self.direction, scales))

    def _measure(self) -> str | None:
        """Set scale and caution by evaluating the loss again."""
        losses, collective = self.losses, self.collective
        if collective.is_repeat_due and not losses.repeats(length.spread(collective)):
            return NO_REPEAT
        collective.note_repeat()
        if collective.scale == 0:
            length.begin(collective, self.direction.slope, self._first_scale())
        else:
            length.adapt(collective)
            length.add_slope(collective, self.direction.slope)
        if length.is_average_due(collective):
            self.places.go("average")
            of_average = losses.again(keep_buffers=collective.shows_average > 0)
            length.compare(collective, losses.first - of_average)
        scale, change = self._shortened()
        return self._believe(scale, change, self._error(change))

    def _trust(self) -> str | None:
        """Set the scale by what is known, unless the slope is so steep that it may be wrong for it."""
        length.adapt(self.collective)
        if not length.is_steep(self.collective, self.direction.slope):
            return None
        self.losses.repeat_first()
        scale, change = self._shortened()
        is_gross = length.is_gross(change, self.direction.slope, scale)
        if scale == self.collective.scale and not is_gross:
            return None
        return self._believe(scale, change, 0.0)

    def _believe(self, scale: float, change: float, error: float) -> str | None:
        """Take in a measurement, unless it is bad news about a loss that does not repeat."""
        collective = self.collective
        if scale < collective.scale:
            self.places.go("iterate")
            if not self.losses.repeats(length.spread(collective)):
                return NO_REPEAT
        is_taken = length.take_measurement(collective, change, self.direction.slope, scale, error)
        return None if is_taken else NOTHING_HELPS

    # --- Along the direction ---------------------------------------------------------------------------

    def _change_after(self, scale: float) -> float:
        """Return the change of the loss over a step of this scale, at whose end parameters then are."""
        self.places.attempt(self.direction, scale)
        return self.losses.again() - self.losses.first

    def _first_scale(self) -> float:
        """Probe until a step lowers the loss, then longer ones while they lower it further.

        A step too short to be seen in the loss is no reason for shorter ones, but for longer ones; and
        of those that lower it, the first speaks whose curvature can be seen.
        """
        slope, rounding = self.direction.slope, self._rounding()
        scale, change = length.PROBE, self._change_after(length.PROBE)
        while self._is_unseen(change, rounding) and scale < 1:
            scale *= length.PROBE_FACTOR
            change = self._change_after(scale)
        while not (change < 0 or self._is_unseen(change, rounding)) and scale > length.SHORTEST:
            scale /= length.PROBE_FACTOR
            change = self._change_after(scale)
        near = self._visibly_best(change, scale, rounding)
        best, lowest = scale, change
        while change <= lowest and scale < 1:
            best, lowest = scale, change
            near = near or self._visibly_best(change, scale, rounding)
            scale *= length.PROBE_FACTOR
            change = self._change_after(scale)
        return length.first_scale(near or 1.0, best, length.probed_scale(change, slope, scale))

    def _visibly_best(self, change: float, scale: float, rounding: float) -> float | None:
        """Return the scale that a probe speaks for; None if its curvature may be rounding."""
        slope = self.direction.slope
        if abs(change + scale * slope) <= self._error(change) + rounding:
            return None
        return length.probed_scale(change, slope, scale)

    def _shortened(self) -> tuple[float, float]:
        """Return a scale at which the step is not grossly too long, if there is one, and the change."""
        slope, scale = self.direction.slope, self.collective.scale
        change = self._change_after(scale)
        attempts = 0
        while (
            length.is_gross(change, slope, scale)
            and attempts < length.ATTEMPTS
            and scale > length.SHORTEST
        ):
            attempts += 1
            scale = length.shorter_scale(change, slope, scale)
            change = self._change_after(scale)
        return scale, change

    def _error(self, change: float) -> float:
        """Return how much of a change may be rounding."""
        first = self.losses.first
        return 4 * self.losses.rounding * (abs(first + change) + abs(first))

    def _is_unseen(self, change: float, rounding: float) -> bool:
        """Whether a change may be none at all."""
        return isfinite(change) and abs(change) <= self._error(change) + rounding

    def _rounding(self) -> float:
        """Return by how much the loss may change as the parameters, where they are, are rounded.

        Half precision rounds most of a short step away, so that the loss seems to bend.
        """
        powers = [
            torch.finfo(part.theta.dtype).eps * (sample_of(part, part.theta)[0] * part.theta).abs().sum()
            for part in self.direction.parts
        ]
        return float(sum(powers)) / 2
