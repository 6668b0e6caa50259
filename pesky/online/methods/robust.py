"""The robust form of vSGD, for a stream: one direction, as long as the sample's loss along it allows.

See docs/theory.md. The shared arithmetic is `pesky.collective`; here are the passes over the
parameters, and the same searches along the direction as in `pesky.torch.robust`.
"""

from typing import Any

import numpy as np

from pesky import collective, rule
from pesky.online.blocks import accept, implements, settle
from pesky.online.compiled import compiled, compiled_apart
from pesky.online.methods.base import Beginning
from pesky.online.methods.robust_direction import PULL, SLOPE, STIFFNESS, RobustState
from pesky.online.passes import Floats, forward, forward_along, precise_loss

__all__ = ["INITIAL_SAMPLES", "RobustState", "begin", "enter", "leave", "rates"]

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
    scale, change = collective.PROBE * collective.PROBE_FACTOR, 0.0
    while not change < 0 and scale > collective.SHORTEST:
        scale /= collective.PROBE_FACTOR
        change = _loss_along(state, shape, theta, output, samples, index, scale) - first
    near = collective.probed_scale(change, slope, scale)
    best, lowest = scale, change
    while change <= lowest and scale < 1:
        best, lowest = scale, change
        scale *= collective.PROBE_FACTOR
        change = _loss_along(state, shape, theta, output, samples, index, scale) - first
    return collective.first_scale(near, best, collective.probed_scale(change, slope, scale))


@compiled
def _is_measured(
    state: Any, shape: Any, theta: Any, output: Any, samples: Any, index: int, first: float
) -> bool:
    """Measure the curvature along the step, and shorten it if need be; False: nothing helps."""
    slope, scale = state.sums[SLOPE], state.numbers[collective.SCALE]
    change = _loss_along(state, shape, theta, output, samples, index, scale) - first
    attempts = 0
    while collective.is_gross(change, slope, scale) and attempts < collective.ATTEMPTS:
        attempts += 1
        scale = collective.shorter_scale(change, slope, scale)
        change = _loss_along(state, shape, theta, output, samples, index, scale) - first
    error = 4 * ROUNDING * (abs(first + change) + abs(first))
    return collective.take_measurement(state.numbers, change, slope, scale, error)


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
def _move(theta: Any, direction: Any, previous: Any, average: Any, length: Any, weight: Any) -> None:
    for i in range(theta.size):
        previous[i] = theta[i]
        moved = theta[i] - length * direction[i]
        theta[i] = moved
        average[i] += weight * (moved - average[i])


@implements(settle, RobustState)
def _settle(state: Any, shape: Any, theta: Any, work: Any, samples: Any, index: int) -> None:
    numbers = state.numbers
    if not 0.0 < state.sums[SLOPE] < np.inf:
        return
    first = _sample_loss(shape, work.output, samples, index)
    collective.add_slope(numbers, state.sums[SLOPE])
    if numbers[collective.SCALE] == 0:
        collective.begin(numbers, _first_scale(state, shape, theta, samples, index))
    collective.adapt(numbers)
    if collective.is_average_due(numbers):
        forward(shape, state.average, work)
        lead = first - _sample_loss(shape, work.output, samples, index)
        if shape.l2 > 0:
            lead += _penalty_above(shape, theta, state.average)
        collective.compare(numbers, lead)
    if _is_measured(state, shape, theta, work.output, samples, index, first):
        length = np.float32(collective.length(numbers))
        weight = np.float32(collective.count_move(numbers))
        _move(theta, state.direction, state.previous, state.average, length, weight)


@compiled_apart
def _is_accident(state: Any, shape: Any, samples: Any, index: int, loss: float) -> Any:
    """Whether the last step raised the loss of this sample, which it had not seen, grossly."""
    output = np.empty(shape.unit_at[-1] + shape.sizes[-1], np.float64)
    output[: shape.sizes[0]] = samples.inputs[index]
    forward_along(shape, state.previous, state.direction, 0.0, output)
    before = _sample_loss(shape, output, samples, index)
    return loss - before > collective.gross_rise(state.numbers)


@implements(accept, RobustState)
def _accept(state: Any, shape: Any, theta: Any, samples: Any, index: int, loss: float) -> bool:
    numbers = state.numbers
    is_finite = np.isfinite(loss)
    if is_finite and not (
        collective.is_suspicious(numbers, loss) and _is_accident(state, shape, samples, index, loss)
    ):
        collective.add_loss(numbers, loss)
        return True
    if collective.restore(numbers):
        theta[:] = state.previous
    return False


# --- What is seen from outside ------------------------------------------------------------------------


def begin(beginning: Beginning, floor: np.float32 | None, every: int) -> RobustState:
    """Return averages that are yet to see the initial samples; one in `every` will have curvature."""
    g, v, h, tau, direction, iterate, previous, average = (
        np.zeros(beginning.parameters, np.float32) for _ in range(8)
    )
    sizes = np.array(beginning.block_sizes, np.int64)
    trusted, sums = np.zeros(sizes.size, np.float32), np.zeros(3)
    places = (iterate, previous, average)
    numbers = np.array(collective.START)
    weight = None if every == 1 else np.float32(every)
    return RobustState(g, v, h, tau, direction, *places, trusted, sizes, sums, numbers, floor, weight)


def enter(state: RobustState, theta: Floats) -> None:
    """Make the parameters the iterate, unless they were changed from outside: then they are it."""
    shown = state.average if state.numbers[collective.SHOWS_AVERAGE] else state.iterate
    if np.array_equal(theta, shown):
        theta[:] = state.iterate
    else:
        collective.start_over(state.numbers)
        state.average[:] = theta


def leave(state: RobustState, theta: Floats) -> None:
    """Make the better place visible: the average, if it was the better one lately."""
    state.iterate[:] = theta
    is_better = state.numbers[collective.LEAD] > 0
    state.numbers[collective.SHOWS_AVERAGE] = is_better
    if is_better:
        theta[:] = state.average


def rates(state: RobustState) -> Floats:
    """Return what the gradient was multiplied with in the last step."""
    ratio = rule.noise_ratio(state.mean_gradient * state.mean_gradient, state.mean_square)
    curvature = rule.at_least(state.mean_curvature, np.repeat(state.trusted, state.sizes))
    length = np.float32(collective.length(state.numbers))
    return np.asarray(length * rule.learning_rate(ratio, curvature))
