"""How the robust dialect takes a step: one direction, as long as the loss along it allows.

See docs/theory.md. The direction p is the paper's step, with curvatures below their tensor's mean
raised to it. Its length comes from the loss at its end; how much of that is used, from a comparison
with the average of the iterates.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from pesky import collective as shared
from pesky.torch.collective import Collective
from pesky.torch.direction import Direction, direction_of, sort
from pesky.torch.distributed import mean_of
from pesky.torch.evaluating import Evaluation
from pesky.torch.parts import Batch, Start
from pesky.torch.places import Places
from pesky.torch.rows import RowsBatch

__all__ = ["Losses", "step", "went_wrong"]


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

    def again(self, keep_buffers: bool = False) -> float:
        """Evaluate at the present parameters."""
        return self._total([one.again(keep_buffers) for one in self._evaluations])

    def forget_buffers(self) -> None:
        """Undo what the first passes did to buffers."""
        for one in self._evaluations:
            one.forget_buffers()

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
) -> None:
    """Let every batch collect or move; measurements are `due` in one of `interval` steps."""
    collective.numbers[shared.INTERVAL] = float(interval)
    moving, by_rows = sort(batches, start)
    direction = direction_of(moving, places.spare)
    if 0 < direction.slope < inf:
        _move(direction, losses, collective, places, due)
    if by_rows:
        places.go("iterate")
    for batch in by_rows:
        batch.advance(start)


def went_wrong(losses: Losses, collective: Collective, places: Places) -> bool:
    """Whether the last step raised the loss of this batch, which it had not seen, grossly."""
    numbers = collective.numbers
    if shared.is_suspicious(numbers, losses.first):
        losses.repeat_first()
        places.go("previous")
        before = losses.again()
        places.go("iterate")
        if losses.first - before > shared.gross_rise(numbers):
            return True
    shared.add_loss(numbers, losses.first)
    return False


def _move(
    direction: Direction, losses: Losses, collective: Collective, places: Places, due: bool
) -> None:
    if collective.scale == 0 and not due:  # nothing is known yet
        losses.repeat_first()
        due = True
    if due:
        may_move = _measure(direction, losses, collective, places)
    else:
        shared.adapt(collective.numbers)
        steep = shared.is_steep(collective.numbers, direction.slope)
        may_move = not steep or _check(direction, losses, collective, places)
    if may_move:
        length = shared.length(collective.numbers)
        scales = [float(part.group["lr"]) * length for part in direction.parts]
        places.move([part.theta for part in direction.parts], scales)


def _changes(direction: Direction, losses: Losses, places: Places) -> Callable[[float], float]:
    """Return the function from the scale of a step to the change of the loss over it."""
    parameters = [part.theta for part in direction.parts]

    def change_after(scale: float) -> float:
        places.attempt(parameters, scale)
        return losses.again() - losses.first

    return change_after


def _measure(direction: Direction, losses: Losses, collective: Collective, places: Places) -> bool:
    """Set scale and caution by evaluating the loss again; False: no step along the direction helps."""
    change_after = _changes(direction, losses, places)
    numbers = collective.numbers
    shared.add_slope(numbers, direction.slope)
    if collective.scale == 0:
        shared.begin(numbers, _first_scale(direction.slope, change_after))
    shared.adapt(numbers)
    if collective.is_average_due:
        places.go("average")
        shared.compare(numbers, losses.first - losses.again(keep_buffers=collective.shows_average))
    return _try_step(direction.slope, losses, change_after, collective)


def _first_scale(slope: float, change_after: Callable[[float], float]) -> float:
    """Probe shorter steps until one lowers the loss, then longer ones while they lower it further."""
    scale, change = shared.PROBE, change_after(shared.PROBE)
    while not change < 0 and scale > shared.SHORTEST:
        scale /= shared.PROBE_FACTOR
        change = change_after(scale)
    near = shared.probed_scale(change, slope, scale)
    best, lowest = scale, change
    while change <= lowest and scale < 1:
        best, lowest = scale, change
        scale *= shared.PROBE_FACTOR
        change = change_after(scale)
    return shared.first_scale(near, best, shared.probed_scale(change, slope, scale))


def _try_step(
    slope: float, losses: Losses, change_after: Callable[[float], float], collective: Collective
) -> bool:
    """Measure the curvature along the step, and shorten it if need be; False: nothing helps."""
    scale, change = _shortened(slope, change_after, collective.scale)
    error = 4 * losses.rounding * (abs(losses.first + change) + abs(losses.first))
    return shared.take_measurement(collective.numbers, change, slope, scale, error)


def _check(direction: Direction, losses: Losses, collective: Collective, places: Places) -> bool:
    """Shorten a step out of turn, if it is grossly too long; False: nothing helps."""
    losses.repeat_first()
    change_after = _changes(direction, losses, places)
    scale, change = _shortened(direction.slope, change_after, collective.scale)
    if scale == collective.scale:
        return True
    return shared.take_measurement(collective.numbers, change, direction.slope, scale, error=0.0)


def _shortened(
    slope: float, change_after: Callable[[float], float], scale: float
) -> tuple[float, float]:
    """Return a scale at which a step is not grossly too long, if one is found, and the change there."""
    change = change_after(scale)
    attempts = 0
    while shared.is_gross(change, slope, scale) and attempts < shared.ATTEMPTS:
        attempts += 1
        scale = shared.shorter_scale(change, slope, scale)
        change = change_after(scale)
    return scale, change
