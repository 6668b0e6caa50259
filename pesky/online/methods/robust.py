"""The robust form of vSGD, for a stream: one direction, as long as the sample's loss along it allows.

See docs/theory.md. The shared arithmetic is in `pesky.direction` and `pesky.length`; here are the passes
over the parameters, and the same searches along the direction as in `pesky.torch.step.measuring`.
"""

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pesky import length, rule
from pesky.compiling.compiled import compiled, compiled_apart
from pesky.direction import relative_square
from pesky.online.blocks import accept, implements, settle
from pesky.online.methods.base import Beginning
from pesky.online.methods.robust_direction import PULL, SLOPE, STIFFNESS, RobustState
from pesky.online.methods.robust_levels import count_move, start_counts
from pesky.online.passes import Floats, Integers, forward, forward_along, precise_loss

__all__ = [
    "INITIAL_SAMPLES",
    "RobustState",
    "begin",
    "block_means",
    "end_look",
    "enter",
    "leave",
    "rates",
]

INITIAL_SAMPLES = 10
ROUNDING = float(np.finfo(np.float32).eps)  # of losses


@compiled
def _sample_loss(shape: Any, output: Any, samples: Any, index: int) -> float:
    """Of the outputs that the last forward pass left."""
    if samples.labels.size > 0:
        return precise_loss(shape, output, samples.labels[index], samples.targets[0])
    return precise_loss(shape, output, 0, samples.targets[index])


@compiled_apart
def _loss_along(
    state: Any, shape: Any, theta: Any, output: Any, samples: Any, index: int, scale: float
) -> Any:
    """Loss after the step -scale p; of the L2 penalty, its change."""
    forward_along(shape, theta, state.direction, scale, output)
    penalty = scale * (scale / 2 * state.sums[STIFFNESS] - state.sums[PULL])
    return _sample_loss(shape, output, samples, index) + penalty


@compiled_apart
def _first_scale(state: Any, shape: Any, theta: Any, samples: Any, index: int) -> float:
    """Probe shorter steps until one lowers the loss, then longer ones while they lower it further.

    What so short a step changes is beyond float32.
    """
    output = np.empty(shape.unit_at[-1] + shape.sizes[-1], np.float64)
    output[: shape.sizes[0]] = samples.inputs[index]
    first = _loss_along(state, shape, theta, output, samples, index, 0.0)
    slope = state.sums[SLOPE]
    scale, change = length.PROBE * length.PROBE_FACTOR, 0.0
    while not change < 0 and scale > length.SHORTEST:
        scale /= length.PROBE_FACTOR
        change = _loss_along(state, shape, theta, output, samples, index, scale) - first
    near = length.probed_scale(change, slope, scale)
    best, lowest = scale, change
    while change <= lowest and scale < 1:
        best, lowest = scale, change
        scale *= length.PROBE_FACTOR
        change = _loss_along(state, shape, theta, output, samples, index, scale) - first
    return length.first_scale(near, best, length.probed_scale(change, slope, scale))


@compiled
def _is_measured(
    state: Any, shape: Any, theta: Any, output: Any, samples: Any, index: int, first: float
) -> bool:
    """Measure the curvature along the step, and shorten it if need be; False: nothing helps."""
    known = length.record_of(state.numbers)
    slope, scale = state.sums[SLOPE], known.scale
    change = _loss_along(state, shape, theta, output, samples, index, scale) - first
    attempts = 0
    while length.is_gross(change, slope, scale) and attempts < length.ATTEMPTS:
        attempts += 1
        scale = length.shorter_scale(change, slope, scale)
        change = _loss_along(state, shape, theta, output, samples, index, scale) - first
    error = 4 * ROUNDING * (abs(first + change) + abs(first))
    return length.take_measurement(known, change, slope, scale, error)


@compiled
def _penalty_above(shape: Any, theta: Any, average: Any) -> Any:
    """Return by how much the L2 penalty of the iterate is above that of the average."""
    total = 0.0
    for k in range(shape.sizes.size - 1):
        columns = shape.sizes[k]
        for j in range(shape.sizes[k + 1]):
            here = slice(shape.weight_at[k] + j * columns, shape.weight_at[k] + (j + 1) * columns)
            ours, theirs = theta[here], average[here]
            of_row = np.float32(0)
            for i in range(columns):
                of_row += (ours[i] - theirs[i]) * (ours[i] + theirs[i])
            total += np.float64(of_row)
    return shape.l2 / 2 * total


@compiled
def _move(theta: Any, direction: Any, average: Any, distance: Any, weight: Any) -> None:
    """Take the iterate into the average, and move on from it.

    It is not in the average before the next sample has been content with it, so that the average is
    where to go back to.
    """
    for i in range(theta.size):
        average[i] += weight * (theta[i] - average[i])
        theta[i] -= distance * direction[i]


@implements(settle, RobustState)
def _settle(state: Any, shape: Any, theta: Any, work: Any, samples: Any, index: int) -> None:
    known = length.record_of(state.numbers)
    if not 0.0 < state.sums[SLOPE] < np.inf:
        if state.sums[SLOPE] == 0:  # a move of no length
            count_move(state)
        return
    first = _sample_loss(shape, work.output, samples, index)
    if known.scale == 0:
        length.begin(known, state.sums[SLOPE], _first_scale(state, shape, theta, samples, index))
    else:
        length.adapt(known)
        length.add_slope(known, state.sums[SLOPE])
    if length.is_average_due(known):
        forward(shape, state.average, work)
        lead = first - _sample_loss(shape, work.output, samples, index)
        if shape.l2 > 0:
            lead += _penalty_above(shape, theta, state.average)
        length.compare(known, lead)
    if _is_measured(state, shape, theta, work.output, samples, index, first):
        distance = np.float32(length.length_of(known))
        weight = np.float32(length.count_move(known))
        _move(theta, state.direction, state.average, distance, weight)
        count_move(state)


@compiled_apart
def _loss_of_average(state: Any, shape: Any, samples: Any, index: int) -> float:
    """Return a sample's loss at the average of the iterates, which has not seen the last step."""
    output = np.empty(shape.unit_at[-1] + shape.sizes[-1], np.float32)  # finite where the iterate's is
    output[: shape.sizes[0]] = samples.inputs[index]
    forward_along(shape, state.average, state.average, 0.0, output)
    return _sample_loss(shape, output, samples, index)


@implements(accept, RobustState)
def _accept(state: Any, shape: Any, theta: Any, samples: Any, index: int, loss: float) -> bool:
    known = length.record_of(state.numbers)
    is_finite = isfinite(loss)
    if known.undoable > 0 and (not is_finite or length.is_suspicious(known, loss)):
        of_average = _loss_of_average(state, shape, samples, index)
        if length.is_accident(known, loss, of_average):
            length.restore(known)
            theta[:] = state.average
            return False
    length.add_loss(known, loss)  # which what is not finite does not change
    return is_finite


# --- What is seen from outside ------------------------------------------------------------------------


def begin(beginning: Beginning, floor: np.float32 | None, every: int | None) -> RobustState:
    """Return averages that are yet to see the initial samples; levels are measured in one of `every`."""
    g, v, direction, iterate, average = (np.zeros(beginning.parameters, np.float32) for _ in range(5))
    sizes = np.array(beginning.block_sizes, np.int64)
    return RobustState(
        mean_gradient=g,
        mean_square=v,
        direction=direction,
        iterate=iterate,
        average=average,
        memory=np.full(sizes.size, rule.START_MEMORY),
        weight=np.zeros(sizes.size, np.float32),
        level_square=np.zeros(sizes.size),
        typical_square=np.zeros(sizes.size),
        level=np.zeros(sizes.size, np.float32),
        inverse=np.zeros(sizes.size, np.float32),
        sizes=sizes,
        counts=start_counts(),
        sums=np.zeros(3),
        numbers=length.start_array(),
        floor=floor,
        every=None if every is None else np.int64(every),
    )


def end_look(state: RobustState, samples: int) -> None:
    """Start with a memory of so many samples."""
    state.memory[:] = max(rule.START_MEMORY, samples)
    state.typical_square[:] = block_means(state.mean_square, state.sizes)


def block_means(values: Floats, sizes: Integers) -> NDArray[np.float64]:
    """Return the mean over each block of what there is for every parameter."""
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    return np.add.reduceat(values.astype(np.float64), starts) / sizes


def enter(state: RobustState, theta: Floats) -> None:
    """Make the parameters the iterate, unless they were changed from outside: then they are it."""
    known = length.record_of(state.numbers)
    shown = state.average if known.shows_average else state.iterate
    if np.array_equal(theta, shown):
        theta[:] = state.iterate
    else:
        length.start_over(known)
        state.average[:] = theta


def leave(state: RobustState, theta: Floats) -> None:
    """Make the better place visible: the average, if it was the better one lately."""
    known = length.record_of(state.numbers)
    state.iterate[:] = theta
    known.shows_average = known.lead > 0
    if known.shows_average:
        theta[:] = state.average


def rates(state: RobustState) -> Floats:
    """Return what the gradient was multiplied with in the last step."""
    level, inverse = (np.repeat(one, state.sizes) for one in (state.level, state.inverse))
    curvature = level * np.sqrt(relative_square(state.mean_square, inverse))
    ratio = rule.noise_ratio(state.mean_gradient * state.mean_gradient, state.mean_square)
    distance = np.float32(length.length_of(length.record_of(state.numbers)))
    return np.asarray(distance * rule.learning_rate(ratio, curvature))
