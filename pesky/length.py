"""How far a robust step goes along its direction: scale, caution, accidents, and how they come about.

See docs/theory.md; the step is theta - caution scale p. A `Length` holds what is known so far, and
functions change it in place. They take any object with its fields: in PyTorch a `Length`, in the
online engine a record over an array of floats (`record_of`). Like those of the rule, they are Python,
and Numba compiles them.

Where a loss is evaluated again, `change` is how much it is above the one before the step.
"""

from dataclasses import astuple, dataclass, fields
from math import inf, isfinite, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pesky import rule

__all__ = [
    "adapt",
    "add_curvature",
    "add_loss",
    "add_slope",
    "added",
    "begin",
    "compare",
    "count_move",
    "first_scale",
    "follow",
    "followed_scale",
    "gentle_share",
    "gross_rise",
    "interval",
    "is_accident",
    "is_average_due",
    "is_gross",
    "is_steep",
    "is_suspicious",
    "length_of",
    "measured_curvature",
    "measurements",
    "memory_of",
    "next_caution",
    "next_scale",
    "probed_scale",
    "restore",
    "set_scale",
    "shorter_scale",
    "spread",
    "start_over",
    "take_measurement",
    "window",
]  # what Numba compiles


@dataclass
class Length:
    """What is known about the length of steps. Each average has a memory: the samples it is over."""

    slope: float = 0.0  # E[g.p]
    slope_memory: float = 0.0
    curvature: float = 0.0  # E[p.Hp]
    curvature_memory: float = 0.0
    lead: float = 0.0  # E[d], d = loss of the iterate - loss of the average
    lead_memory: float = 0.0
    lead_square: float = 0.0  # E[d^2]
    lead_square_memory: float = 0.0
    scale: float = 0.0  # 0: none yet
    caution: float = 1.0
    averaged: float = 0.0  # moves that the average of the iterates consists of
    shortened: float = 0.0  # steps that were too long
    restored: float = 0.0  # steps that were undone
    undoable: float = 0.0  # 0 or 1: there is a last step, and it has not been undone
    shows_average: float = 0.0  # 0 or 1: the average is visible
    next_slope: float = 0.0  # E[g.p] with the g after the step
    next_slope_memory: float = 0.0
    loss: float = 0.0  # E[L] of batches not yet learnt from
    loss_memory: float = 0.0
    loss_square: float = 0.0  # E[L^2]
    loss_square_memory: float = 0.0
    interval: float = 1.0  # steps from one measurement to the next


NAMES = tuple(field.name for field in fields(Length))
RECORD = np.dtype([(name, np.float64) for name in NAMES])
Fields: TypeAlias = Any  # a Length, or a record of the same fields


def start_array() -> NDArray[np.float64]:
    """Return an array for `record_of`, in which nothing is known yet."""
    return np.array(astuple(Length()))


def record_of(numbers: NDArray[np.float64]) -> Fields:
    """Return the fields of an array: what changes in one changes in the other."""
    return numbers.view(RECORD).view(np.recarray)[0]


MEMORY = 20.0  # steps that scale and caution look back at first
MEMORY_SHARE = 0.05  # of all steps so far, by which that grows
LEVEL_SHARE = 0.05  # of all moves so far: from one measurement of levels to the next
FEWEST = 5.0  # measurements that scale and caution look back, however seldom they are
GROWTH = 2.0  # of the scale in one step, at most
GROSS = 10.0  # standard deviations of the loss: a rise by more, and by more than the loss itself
STEEP = 10.0  # times the average slope: such a step is checked, whether it is its turn or not
FOLLOWING = 0.1  # of the change that one gradient after a step speaks for
SHARE = 0.2  # of all steps so far: the window of the average of the iterates

PROBE = 1e-3  # of the direction, before anything is known about its length
PROBE_FACTOR = 10.0  # from one probe to the next
SHORTEST = 1e-12  # scale: curvatures that are wrong by more than that, float32 cannot tell from none
ATTEMPTS = 8  # to shorten a step


# --- The arithmetic: no branches and no literals, as in the rule ---------------------------------------


def measured_curvature(change: rule.Number, slope: rule.Number, scale: rule.Number) -> rule.Number:
    """Return p.Hp from the change of the loss over the step -scale p, whose slope g.p is known.

    change = -scale g.p + scale^2/2 p.Hp, were the loss a quadratic; a negative p.Hp counts as none.
    """
    excess = (change + scale * slope) / scale
    return rule.larger(excess + excess, excess - excess) / scale


def next_scale(slope: rule.Number, curvature: rule.Number, most: rule.Number) -> rule.Number:
    """Return the length E[g.p] / E[p.Hp] of steps along p, but not more than `most`."""
    curvature = rule.larger(curvature, slope / most)
    return slope / (curvature + (curvature == 0))


def next_caution(caution: rule.Number, score: rule.Number, window: rule.Number) -> rule.Number:
    """Return the share of the scale to use: less while the average of the iterates is the better one.

    `score`, from -1 to 1, says how reliably it is. Equal scores of both signs cancel; never above 1.
    """
    full = caution - caution + True
    return -rule.larger(-(caution * (window - score) / (window + score)), -full)


# --- How much is remembered, and how often is measured -------------------------------------------------


def memory_of(length: Fields) -> float:
    """Return how many steps the expectations look back."""
    return MEMORY + MEMORY_SHARE * length.averaged  # type: ignore[no-any-return]


def interval(moves: int, most: float) -> float:
    """Return how many steps there are to a measurement: few at first, where everything changes."""
    return max(1, min(most, int(LEVEL_SHARE * moves)))


def measurements(length: Fields, steps: float) -> float:
    """Return how many measurements stand for so many steps: not too few to tell anything."""
    return max(steps / length.interval, FEWEST)  # type: ignore[no-any-return]


def window(length: Fields) -> float:
    """Return how many steps the average of the iterates is over."""
    return SHARE * length.averaged  # type: ignore[no-any-return]


def length_of(length: Fields) -> float:
    """Return how far along p a step goes."""
    return length.caution * length.scale  # type: ignore[no-any-return]


def is_average_due(length: Fields) -> bool:
    """Whether a step that measures compares iterate and average, too: every second one does."""
    measured = length.averaged // length.interval
    return length.averaged >= MEMORY and measured % 2 == 0  # type: ignore[no-any-return]


# --- What steps and losses tell ------------------------------------------------------------------------


def added(mean: float, memory: float, sample: float, longest: float) -> tuple[float, float]:
    """Take a sample into an exponential average; return it and over how many samples it now is.

    While these are few, it is their plain average; they are never more than `longest`.
    """
    memory = memory * (1 - 1 / longest) + 1
    return rule.average(mean, sample, memory), memory


def add_curvature(length: Fields, curvature: float) -> None:
    """Take in a p.Hp, which only steps that measure find."""
    longest = measurements(length, memory_of(length))
    length.curvature, length.curvature_memory = added(
        length.curvature, length.curvature_memory, curvature, longest
    )


def add_slope(length: Fields, sample: float) -> None:
    """Take in a g.p of a step that measures."""
    longest = measurements(length, memory_of(length))
    length.slope, length.slope_memory = added(length.slope, length.slope_memory, sample, longest)


def is_steep(length: Fields, slope: float) -> bool:
    """Whether a slope is so much larger than usual that the usual scale may be wrong for it."""
    return slope > STEEP * length.slope  # type: ignore[no-any-return]


def gentle_share(length: Fields, slope: float) -> float:
    """Return which share of a step to take whose end nobody can look at: steep ones are shortened.

    That is to lower the loss by as much as a step that is not steep. If steep ones go on to come, they
    are soon the usual ones.
    """
    if length.slope_memory == 0 or length.slope == 0 or not is_steep(length, slope):
        return 1.0
    share = STEEP * length.slope / slope
    length.slope *= STEEP
    length.next_slope *= STEEP
    length.shortened += 1
    return share  # type: ignore[no-any-return]


def set_scale(length: Fields, scale: float) -> None:
    """Set the scale, which is never below the shortest; what is not finite says nothing about it."""
    if isfinite(scale):
        length.scale = max(scale, SHORTEST)


def begin(length: Fields, slope: float, scale: float) -> None:
    """Set the first scale, along a direction of this slope."""
    set_scale(length, scale)
    add_slope(length, slope)
    add_curvature(length, length.slope / length.scale)


def adapt(length: Fields) -> None:
    """Set the scale from the averages, before the slope of a step is one of them.

    Both are then over the same steps. A direction that suddenly is much longer would else lengthen the
    scale, too, as its curvature is not known before the step.
    """
    most = GROWTH * length.scale
    set_scale(length, next_scale(length.slope, length.curvature, most))


def followed_scale(scale: float, left: float) -> float:
    """Return scale / (1 - left), where `left` of the slope is left after a step; beyond the end, < 0.

    Were the loss a quadratic and all of it seen, that would be the end: a / (1 - (s - a c) / s) = s / c.
    """
    return scale / (1 - left)


def follow(length: Fields, slope: float, next_slope: float) -> None:
    """Set the scale from the slope g.p of a step and the one that the next batch finds at its end."""
    if not isfinite(next_slope):
        return
    longest = memory_of(length)
    length.slope, length.slope_memory = added(length.slope, length.slope_memory, slope, longest)
    length.next_slope, length.next_slope_memory = added(
        length.next_slope, length.next_slope_memory, next_slope, longest
    )
    if length.slope > 0:
        left = max(FOLLOWING * min(length.next_slope / length.slope, 1.0), -1.0)
        set_scale(length, followed_scale(length.scale, left))


def add_loss(length: Fields, loss: float) -> None:
    """Take in the loss of a fresh batch, unless its square is not finite."""
    square = loss * loss
    if isfinite(square):
        longest = memory_of(length)
        length.loss, length.loss_memory = added(length.loss, length.loss_memory, loss, longest)
        length.loss_square, length.loss_square_memory = added(
            length.loss_square, length.loss_square_memory, square, longest
        )


def spread(length: Fields) -> float:
    """Return the standard deviation of fresh batches' losses."""
    return sqrt(max(length.loss_square - length.loss * length.loss, 0.0))


def gross_rise(length: Fields) -> float:
    """Return by how much a fresh batch's loss may rise in one step before that is called an accident."""
    return abs(length.loss) + GROSS * spread(length)  # type: ignore[no-any-return]


def is_suspicious(length: Fields, loss: float) -> bool:
    """Whether a fresh batch's loss is so large that the last step may be the reason."""
    undoable = length.undoable > 0
    return undoable and loss > length.loss + gross_rise(length)  # type: ignore[no-any-return]


def is_accident(length: Fields, loss: float, elsewhere: float) -> bool:
    """Whether a suspicious loss is grossly lower elsewhere, where most of the rise is not seen.

    Where data has changed all of it is high, though less so where parameters are more moderate.
    """
    if not (isfinite(loss) and isfinite(elsewhere)):
        return isfinite(elsewhere)
    fall = loss - elsewhere
    return fall > max(gross_rise(length), (loss - length.loss) / 2)  # type: ignore[no-any-return]


def restore(length: Fields) -> bool:
    """Note that the last step has to be undone; False if there is none."""
    if length.undoable == 0:
        return False
    length.undoable = 0.0
    length.restored += 1
    if length.scale > 0:
        set_scale(length, length.scale / 2)
        length.curvature = length.slope / length.scale
    return True


def compare(length: Fields, lead: float) -> None:
    """Set the caution from iterate against average."""
    square = lead * lead
    if not isfinite(square):
        return
    longest = measurements(length, memory_of(length))
    length.lead, length.lead_memory = added(length.lead, length.lead_memory, lead, longest)
    length.lead_square, length.lead_square_memory = added(
        length.lead_square, length.lead_square_memory, square, longest
    )
    if length.lead_square > 0:
        score = length.lead / sqrt(length.lead_square)
        steps = measurements(length, MEMORY + window(length))
        length.caution = next_caution(length.caution, score, steps)


def count_move(length: Fields) -> float:
    """Note a move; return the weight of the new iterate in the average."""
    length.averaged += 1
    length.undoable = 1.0
    return 1 / (window(length) + 1)


def start_over(length: Fields) -> None:
    """Average anew: the parameters were changed from outside."""
    length.averaged = length.undoable = length.shows_average = 0.0
    length.lead = length.lead_memory = 0.0
    length.lead_square = length.lead_square_memory = 0.0


# --- What the two searches along p have in common: for the first scale, and for a shorter step --------


def probed_scale(change: float, slope: float, scale: float) -> float:
    """Return the scale that a probe speaks for; a separable problem needs none above 1."""
    curvature = measured_curvature(change, slope, scale) if isfinite(change) else inf
    return next_scale(slope, curvature, 1.0)  # type: ignore[no-any-return]


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
        curvature = measured_curvature(change, slope, scale)
        shorter = min(shorter, max(slope / curvature, scale / 100))
    return max(shorter, SHORTEST)


def take_measurement(length: Fields, change: float, slope: float, scale: float, error: float) -> bool:
    """Take in the change over a step, shortened if `scale` is not the one set; False: do not move.

    A change that `error` may explain does not raise the average of p.Hp.
    """
    if scale < length.scale:
        length.shortened += 1
        set_scale(length, scale)
        length.curvature = length.slope / scale
        return not is_gross(change, slope, scale)
    if is_gross(change, slope, scale):  # the shortest there is
        return False
    curvature = measured_curvature(change, slope, scale)
    if change + scale * slope > error or curvature < length.curvature:
        add_curvature(length, curvature)
    return True
