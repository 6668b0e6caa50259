"""How the robust dialect takes a step: one direction, as long as the loss along it allows.

See docs/theory.md. The direction p is the paper's step, with curvatures below their tensor's mean
raised to it. Its length comes from the loss at its end; how much of that is used, from a comparison
with the average of the iterates.
"""

from collections.abc import Callable, Sequence
from math import inf, isfinite, sqrt
from typing import Any

from pesky import collective as shared
from pesky.torch.collective import Collective
from pesky.torch.direction import Direction, direction_of, sort
from pesky.torch.distributed import mean_of
from pesky.torch.evaluating import Evaluation
from pesky.torch.parts import Batch, Start
from pesky.torch.places import Places
from pesky.torch.rows import RowsBatch
from pesky.torch.skipping import DIRECTION, HIGHER, NO_REPEAT, NOT_FINITE, NOTHING_HELPS, Outcome

__all__ = ["Losses", "step", "trouble"]

_SAME = 0.01  # of the spread of losses: what differs by less is the same loss, computed in another way


class Losses:
    """The losses of this step's batches, in sum and with the L2 penalty, at any parameters."""

    def __init__(
        self, evaluations: Sequence[Evaluation], groups: Sequence[dict[str, Any]], among: Any
    ) -> None:
        """Compute the one at the present parameters; `among`: processes that have batches, or None."""
        self._evaluations = evaluations
        self._among = among
        self._decayed = [(group["weight_decay"], group["params"]) for group in groups]
        self.rounding = max(one.rounding for one in evaluations)
        self.first = self._first()

    def repeat_first(self) -> None:
        """Make sure that the loss at the present parameters has the randomness of later ones."""
        for one in self._evaluations:
            one.repeat()
        self.first = self._first()

    def repeats(self, spread: float) -> bool:
        """Whether the loss at the present parameters, where the first one was, is the same again.

        A loss that is not, such as one of a batch that the closure draws itself, cannot be compared with
        itself elsewhere. Rounding may differ, as other kernels run where no graph is recorded, and a
        closure may do other things then: if need be, it is given one.
        """
        if self._is_first(self.again(), spread):
            return True
        return self._record_graphs() and self._is_first(self.again(), spread)

    def _is_first(self, loss: float, spread: float) -> bool:
        rounding = sqrt(self.rounding) * max(abs(loss), abs(self.first))
        return abs(loss - self.first) <= max(rounding, _SAME * spread)

    def _record_graphs(self) -> bool:
        """Let all evaluations have graphs from now on; False if they had."""
        changed = [one.record_graph() for one in self._evaluations]
        return True in changed

    def again(self, keep_buffers: bool = False) -> float:
        """Evaluate at the present parameters."""
        return self._total([one.again(keep_buffers) for one in self._evaluations])

    def _first(self) -> float:
        return self._total([one.loss for one in self._evaluations])

    def _total(self, losses: Sequence[float]) -> float:
        total = sum(losses)
        if self._among is not None:
            total = mean_of(total, self._among)
        return total + self._penalty()

    def _penalty(self) -> float:
        return sum(
            float(decay) / 2 * float(one.detach().double().square().sum())
            for decay, parameters in self._decayed
            if decay
            for one in parameters
        )


def step(
    batches: Sequence[Batch | RowsBatch],
    start: Start,
    losses: Losses,
    collective: Collective,
    places: Places,
    interval: int,
    due: bool,
) -> Outcome:
    """Let every batch collect or move; measurements are `due` in one of `interval` steps."""
    collective.numbers[shared.INTERVAL] = float(interval)
    moving, by_rows = sort(batches, start)
    direction = direction_of(moving, places.spare)
    outcome = Outcome()
    if 0 < direction.slope < inf:
        outcome = _move(direction, losses, collective, places, due)
    elif direction.slope != 0:
        outcome = Outcome(skipped=DIRECTION)
    if by_rows:
        places.go("iterate")
    for batch in by_rows:
        outcome = outcome.joined(batch.advance(start))
    return outcome


def trouble(losses: Losses, collective: Collective, places: Places) -> Outcome:
    """Tell whether this batch can be learnt from, and whether the last step is to be undone.

    That is so if the last step raised the loss of this batch, which it had not seen, grossly.
    """
    numbers = collective.numbers
    is_finite = isfinite(losses.first)
    if not is_finite or shared.is_suspicious(numbers, losses.first):
        if numbers[shared.UNDOABLE] > 0:
            losses.repeat_first()
            places.go("previous")
            before = losses.again()
            places.go("iterate")
            if isfinite(before) and not losses.first - before <= shared.gross_rise(numbers):
                return Outcome(skipped=HIGHER if is_finite else NOT_FINITE, undo=True)
        if not is_finite:
            return Outcome(skipped=NOT_FINITE)
    shared.add_loss(numbers, losses.first)
    return Outcome()


def _move(
    direction: Direction, losses: Losses, collective: Collective, places: Places, due: bool
) -> Outcome:
    if collective.scale == 0 and not due:  # nothing is known yet
        losses.repeat_first()
        due = True
    if due:
        reason = _measure(direction, losses, collective, places)
    else:
        shared.adapt(collective.numbers)
        steep = shared.is_steep(collective.numbers, direction.slope)
        reason = _check(direction, losses, collective, places) if steep else None
    if reason is not None:
        return Outcome(skipped=reason)
    length = shared.length(collective.numbers)
    scales = [float(part.group["lr"]) * length for part in direction.parts]
    return Outcome(held=places.move([part.theta for part in direction.parts], scales))


def _changes(direction: Direction, losses: Losses, places: Places) -> Callable[[float], float]:
    """Return the function from the scale of a step to the change of the loss over it."""
    parameters = [part.theta for part in direction.parts]

    def change_after(scale: float) -> float:
        places.attempt(parameters, scale)
        return losses.again() - losses.first

    return change_after


def _measure(direction: Direction, losses: Losses, collective: Collective, places: Places) -> str | None:
    """Set scale and caution by evaluating the loss again; return why no step is to be taken, if so."""
    change_after = _changes(direction, losses, places)
    numbers = collective.numbers
    if collective.is_repeat_due and not losses.repeats(shared.spread(numbers)):
        return NO_REPEAT
    collective.note_repeat()
    shared.add_slope(numbers, direction.slope)
    if collective.scale == 0:
        shared.begin(numbers, _first_scale(direction.slope, losses, change_after))
    shared.adapt(numbers)
    if collective.is_average_due:
        places.go("average")
        shared.compare(numbers, losses.first - losses.again(keep_buffers=collective.shows_average))
    scale, change = _shortened(direction.slope, change_after, collective.scale)
    return _take(direction.slope, scale, change, _error(losses, change), losses, collective, places)


def _check(direction: Direction, losses: Losses, collective: Collective, places: Places) -> str | None:
    """Shorten a step out of turn, if it is grossly too long; return why none is to be taken, if so."""
    losses.repeat_first()
    scale, change = _shortened(direction.slope, _changes(direction, losses, places), collective.scale)
    if scale == collective.scale and not shared.is_gross(change, direction.slope, scale):
        return None
    return _take(direction.slope, scale, change, 0.0, losses, collective, places)


def _take(
    slope: float,
    scale: float,
    change: float,
    error: float,
    losses: Losses,
    collective: Collective,
    places: Places,
) -> str | None:
    """Believe a measurement, unless it is bad news about a loss that does not repeat."""
    numbers = collective.numbers
    if scale < collective.scale:
        places.go("iterate")
        if not losses.repeats(shared.spread(numbers)):
            return NO_REPEAT
    return None if shared.take_measurement(numbers, change, slope, scale, error) else NOTHING_HELPS


def _error(losses: Losses, change: float) -> float:
    """Return how much of a change may be rounding."""
    return 4 * losses.rounding * (abs(losses.first + change) + abs(losses.first))


def _is_unseen(losses: Losses, change: float) -> bool:
    """Whether a change may be none at all."""
    return isfinite(change) and abs(change) <= _error(losses, change)


def _first_scale(slope: float, losses: Losses, change_after: Callable[[float], float]) -> float:
    """Probe until a step lowers the loss, then longer ones while they lower it further.

    A step too short to be seen in the loss is no reason for shorter ones, but for longer ones.
    """
    scale, change = shared.PROBE, change_after(shared.PROBE)
    while _is_unseen(losses, change) and scale < 1:
        scale *= shared.PROBE_FACTOR
        change = change_after(scale)
    while not (change < 0 or _is_unseen(losses, change)) and scale > shared.SHORTEST:
        scale /= shared.PROBE_FACTOR
        change = change_after(scale)
    near = shared.probed_scale(change, slope, scale)
    best, lowest = scale, change
    while change <= lowest and scale < 1:
        best, lowest = scale, change
        scale *= shared.PROBE_FACTOR
        change = change_after(scale)
    return shared.first_scale(near, best, shared.probed_scale(change, slope, scale))


def _shortened(
    slope: float, change_after: Callable[[float], float], scale: float
) -> tuple[float, float]:
    """Return a scale at which a step is not grossly too long, if one is found, and the change there."""
    change = change_after(scale)
    attempts = 0
    while (
        shared.is_gross(change, slope, scale) and attempts < shared.ATTEMPTS and scale > shared.SHORTEST
    ):
        attempts += 1
        scale = shared.shorter_scale(change, slope, scale)
        change = change_after(scale)
    return scale, change
