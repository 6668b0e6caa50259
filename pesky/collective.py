"""The numbers that all parameters share in the robust form: scale, caution, and how they come about.

See docs/theory.md; the step is theta - caution scale p. The numbers stand in one list of floats (or
an array of float64), in the order of `NAMES`; functions change it in place. Like those of the rule,
they are Python, and Numba compiles them.

Where a loss is evaluated again, `change` is how much it is above the one before the step.
"""

from math import inf, isfinite, sqrt
from typing import Any, TypeAlias

from pesky import rule

__all__ = [
    "adapt",
    "add",
    "add_loss",
    "add_measured",
    "add_slope",
    "begin",
    "compare",
    "count_move",
    "first_scale",
    "follow",
    "followed_scale",
    "gross_rise",
    "interval",
    "is_average_due",
    "is_gross",
    "is_steep",
    "is_suspicious",
    "length",
    "measurements",
    "memory",
    "probed_scale",
    "restore",
    "set_scale",
    "shorter_scale",
    "spread",
    "start_over",
    "take_measurement",
    "window",
]

Numbers: TypeAlias = Any  # a list of floats or an array of float64

NAMES = (
    *("slope", "slope_memory"),  # E[g.p], and over how many samples
    *("curvature", "curvature_memory"),  # E[p.Hp]
    *("lead", "lead_memory"),  # E[d], d = loss of the iterate - loss of the average
    *("lead_square", "lead_square_memory"),  # E[d^2]
    *("scale", "caution"),  # a scale of 0 is none yet
    "moves",  # that the average of the iterates consists of
    *("shortened", "restored"),  # accidents
    *("undoable", "shows_average"),  # 0 or 1: the iterate before is another; the average is visible
    *("next_slope", "next_slope_memory"),  # E[g.p] with the g after the step
    *("loss", "loss_memory"),  # E[L] of batches not yet learnt from
    *("loss_square", "loss_square_memory"),  # E[L^2]
    "interval",  # steps from one measurement to the next
)
SLOPE, _, CURVATURE, _, LEAD, LEAD_MEMORY, LEAD_SQUARE, LEAD_SQUARE_MEMORY, SCALE, CAUTION = range(10)
MOVES, SHORTENED, RESTORED, UNDOABLE, SHOWS_AVERAGE, NEXT_SLOPE, _ = range(10, 17)
LOSS, _, LOSS_SQUARE, _, INTERVAL = range(17, len(NAMES))
START = tuple(float(name in ("caution", "interval")) for name in NAMES)

MEMORY = 20.0  # steps that scale and caution look back at first
MEMORY_SHARE = 0.05  # of all steps so far, by which that grows
FEWEST = 5.0  # measurements that scale and caution look back, however seldom they are
GROWTH = 1.1  # of the scale in one step, at most
GROSS = 10.0  # standard deviations of the loss: a rise by more, and by more than the loss itself
STEEP = 10.0  # times the average slope: such a step is checked, whether it is its turn or not
FOLLOWING = 0.1  # of the change that one gradient after a step speaks for
SHARE = 0.2  # of all steps so far: the window of the average of the iterates

PROBE = 1e-3  # of the direction, before anything is known about its length
PROBE_FACTOR = 10.0  # from one probe to the next
SHORTEST = 1e-12  # scale: curvatures that are wrong by more than that, float32 cannot tell from none
ATTEMPTS = 8  # to shorten a step


def memory(numbers: Numbers) -> float:
    """Return that of the expectations, in steps."""
    return MEMORY + MEMORY_SHARE * numbers[MOVES]  # type: ignore[no-any-return]


def interval(moves: int, most: int) -> int:
    """Return how many steps there are to a measurement: few at first, where everything changes."""
    return max(1, min(most, int(MEMORY_SHARE * moves)))


def measurements(numbers: Numbers, steps: float) -> float:
    """Return how many measurements stand for so many steps: not too few to tell anything."""
    return max(steps / numbers[INTERVAL], FEWEST)  # type: ignore[no-any-return]


def window(numbers: Numbers) -> float:
    """Return that of the average of the iterates, in steps."""
    return SHARE * numbers[MOVES]  # type: ignore[no-any-return]


def length(numbers: Numbers) -> float:
    """Return how far along p a step goes."""
    return numbers[CAUTION] * numbers[SCALE]  # type: ignore[no-any-return]


def is_average_due(numbers: Numbers) -> bool:
    """Whether a step that measures compares iterate and average: every second one, or more."""
    often = numbers[INTERVAL] > 1
    return numbers[MOVES] >= MEMORY and (often or numbers[MOVES] % 2 == 0)  # type: ignore[no-any-return]


def add(numbers: Numbers, which: int, sample: float, memory: float) -> None:
    """Take a sample into an exponential average; while samples are few, it is their plain average."""
    numbers[which + 1] = numbers[which + 1] * (1 - 1 / memory) + 1
    numbers[which] = rule.average(numbers[which], sample, numbers[which + 1])


def add_measured(numbers: Numbers, which: int, sample: float) -> None:
    """Take a sample into an average that only steps which measure add to."""
    add(numbers, which, sample, measurements(numbers, memory(numbers)))


def add_slope(numbers: Numbers, sample: float) -> None:
    """Take in a g.p."""
    add_measured(numbers, SLOPE, sample)


def is_steep(numbers: Numbers, slope: float) -> bool:
    """Whether a slope is so much larger than usual that the usual scale may be wrong for it."""
    return slope > STEEP * numbers[SLOPE]  # type: ignore[no-any-return]


def set_scale(numbers: Numbers, scale: float) -> None:
    """Set the scale, which is never below the shortest; what is not finite says nothing about it."""
    if isfinite(scale):
        numbers[SCALE] = max(scale, SHORTEST)


def begin(numbers: Numbers, scale: float) -> None:
    """Set the first scale."""
    set_scale(numbers, scale)
    add_measured(numbers, CURVATURE, numbers[SLOPE] / numbers[SCALE])


def adapt(numbers: Numbers) -> None:
    """Set the scale from the averages."""
    most = GROWTH * numbers[SCALE]
    set_scale(numbers, rule.next_scale(numbers[SLOPE], numbers[CURVATURE], most))


def followed_scale(scale: float, left: float) -> float:
    """Return scale / (1 - left), where `left` of the slope is left after a step; beyond the end, < 0.

    Were the loss a quadratic and all of it seen, that would be the end: a / (1 - (s - a c) / s) = s / c.
    """
    return scale / (1 - left)


def follow(numbers: Numbers, slope: float, next_slope: float) -> None:
    """Set the scale from the slope g.p of a step and the one that the next batch finds at its end."""
    if not isfinite(next_slope):
        return
    add(numbers, SLOPE, slope, memory(numbers))
    add(numbers, NEXT_SLOPE, next_slope, memory(numbers))
    if numbers[SLOPE] > 0:
        left = max(FOLLOWING * min(numbers[NEXT_SLOPE] / numbers[SLOPE], 1.0), -1.0)
        set_scale(numbers, followed_scale(numbers[SCALE], left))


def add_loss(numbers: Numbers, loss: float) -> None:
    """Take in the loss of a fresh batch, unless its square is not finite."""
    if isfinite(loss * loss):
        add(numbers, LOSS, loss, memory(numbers))
        add(numbers, LOSS_SQUARE, loss * loss, memory(numbers))


def spread(numbers: Numbers) -> float:
    """Return the standard deviation of fresh batches' losses."""
    return sqrt(max(numbers[LOSS_SQUARE] - numbers[LOSS] * numbers[LOSS], 0.0))


def gross_rise(numbers: Numbers) -> float:
    """Return by how much a fresh batch's loss may rise in one step before that is called an accident."""
    return abs(numbers[LOSS]) + GROSS * spread(numbers)  # type: ignore[no-any-return]


def is_suspicious(numbers: Numbers, loss: float) -> bool:
    """Whether a fresh batch's loss is so large that the last step may be the reason."""
    undoable = numbers[UNDOABLE] > 0
    return undoable and loss > numbers[LOSS] + gross_rise(numbers)  # type: ignore[no-any-return]


def restore(numbers: Numbers) -> bool:
    """Note that the last step has to be undone; False if there is none."""
    if numbers[UNDOABLE] == 0:
        return False
    numbers[UNDOABLE] = 0.0
    numbers[RESTORED] += 1
    if numbers[SCALE] > 0:
        set_scale(numbers, numbers[SCALE] / 2)
        numbers[CURVATURE] = numbers[SLOPE] / numbers[SCALE]
    return True


def compare(numbers: Numbers, lead: float) -> None:
    """Set the caution from iterate against average."""
    if not isfinite(lead * lead):
        return
    add_measured(numbers, LEAD, lead)
    add_measured(numbers, LEAD_SQUARE, lead * lead)
    if numbers[LEAD_SQUARE] > 0:
        score = numbers[LEAD] / sqrt(numbers[LEAD_SQUARE])
        steps = MEMORY + window(numbers)
        if numbers[INTERVAL] > 1:  # or else there is one comparison in two steps
            steps = 2 * measurements(numbers, steps)
        numbers[CAUTION] = rule.next_caution(numbers[CAUTION], score, steps)


def count_move(numbers: Numbers) -> float:
    """Note a move; return the weight of the new iterate in the average."""
    numbers[MOVES] += 1
    numbers[UNDOABLE] = 1.0
    return 1 / (window(numbers) + 1)


def start_over(numbers: Numbers) -> None:
    """Average anew: the parameters were changed from outside."""
    numbers[MOVES] = numbers[UNDOABLE] = numbers[SHOWS_AVERAGE] = 0.0
    numbers[LEAD] = numbers[LEAD_MEMORY] = 0.0
    numbers[LEAD_SQUARE] = numbers[LEAD_SQUARE_MEMORY] = 0.0


# --- What the two searches along p have in common: for the first scale, and for a shorter step --------


def probed_scale(change: float, slope: float, scale: float) -> float:
    """Return the scale that a probe speaks for; a separable problem needs none above 1."""
    curvature = rule.measured_curvature(change, slope, scale) if isfinite(change) else inf
    return rule.next_scale(slope, curvature, 1.0)  # type: ignore[no-any-return]


def first_scale(near: float, best: float, far: float) -> float:
    """Return the first scale from the first probe that lowers the loss and the one that goes too far.

    `near` and `far` are what the two speak for, and the larger curvature is believed; `best` is the
    longest probe that lowered the loss as far as any.
    """
    return max(SHORTEST, min(near, max(best, far)))


def is_gross(change: float, slope: float, scale: float) -> bool:
    """Whether a step raises its own batch's loss by more than it was to lower it; NaN does."""
    return not change <= scale * slope


def shorter_scale(change: float, slope: float, scale: float) -> float:
    """Return what to try after a step that was too long."""
    shorter = scale / 4
    if isfinite(change):
        curvature = rule.measured_curvature(change, slope, scale)
        shorter = min(shorter, max(slope / curvature, scale / 100))
    return max(shorter, SHORTEST)


def take_measurement(numbers: Numbers, change: float, slope: float, scale: float, error: float) -> bool:
    """Take in the change over a step, shortened if `scale` is not the one set; False: do not move.

    A change that `error` may explain does not raise the average of p.Hp.
    """
    if scale < numbers[SCALE]:
        numbers[SHORTENED] += 1
        set_scale(numbers, scale)
        numbers[CURVATURE] = numbers[SLOPE] / scale
        return not is_gross(change, slope, scale)
    if is_gross(change, slope, scale):  # the shortest there is
        return False
    curvature = rule.measured_curvature(change, slope, scale)
    if change + scale * slope > error or curvature < numbers[CURVATURE]:
        add_measured(numbers, CURVATURE, curvature)
    return True
