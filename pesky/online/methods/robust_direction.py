"""The robust form's direction: the paper's step, with curvatures from the levels of blocks."""

from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pesky import length, rule
from pesky.compiling.compiled import compiled
from pesky.direction import follow_gradient, relative_square
from pesky.online.blocks import gather, implements, observe, prepare, preview
from pesky.online.methods.robust_levels import (
    count_initial,
    is_due,
    measure,
    note_measurement,
    set_levels,
)
from pesky.online.passes import Floats, Integers

__all__ = ["PULL", "SLOPE", "STIFFNESS", "RobustState"]

SLOPE, PULL, STIFFNESS = range(3)  # g.p; and of the L2 penalty along p, slope and curvature


class RobustState(NamedTuple):
    """While training, the network's parameters are the iterate."""

    mean_gradient: Floats  # g, one a parameter
    mean_square: Floats  # v, likewise
    direction: Floats  # p, likewise
    iterate: Floats  # as training was left
    average: Floats  # of the iterates before it
    memory: NDArray[np.float64]  # tau, one a block
    weight: Floats  # 1 / tau before this step, likewise
    level_square: NDArray[np.float64]  # average of squared levels, likewise
    typical_square: NDArray[np.float64]  # mean of v after the last step, likewise
    level: Floats  # curvature of an entry whose gradients are of the usual size in this step, likewise
    inverse: Floats  # 1 over the mean of v before this step, likewise
    sizes: Integers  # of the blocks
    counts: NDArray[np.float64]  # of `robust_levels`
    sums: NDArray[np.float64]  # of this step, over all blocks
    numbers: NDArray[np.float64]  # fields of `pesky.length.Length`
    floor: np.float32 | None
    every: np.int64 | None  # moves from one measurement of levels to the next, at most


@implements(preview, RobustState)
def _preview(state: Any, shape: Any, theta: Any, work: Any) -> None:
    measure(state, shape, theta, work, inf)
    count_initial(state)


@implements(observe, RobustState)
def _observe(state: Any, block: Any, count: int) -> None:
    columns = block.column.size
    memory = np.float32(count)
    for j in range(block.row.size):
        here = slice(block.start + j * columns, block.start + (j + 1) * columns)
        theta = block.theta[j * columns : (j + 1) * columns]
        g, v = state.mean_gradient[here], state.mean_square[here]
        for i in range(columns):
            gradient = block.row[j] * block.column[i] + block.l2 * theta[i]
            g[i] = rule.average(g[i], gradient, memory)
            v[i] = rule.average(v[i], gradient * gradient, memory)


@compiled
def _direct_row(
    theta: Any,
    g: Any,
    v: Any,
    direction: Any,
    column: Any,
    pull: Any,
    l2: Any,
    level: Any,
    inverse: Any,
    weight: Any,
) -> tuple[Any, Any, Any, Any, Any]:
    """Take a row of the gradient into the averages, and write p.

    Return the row's sums of gradient p, of theta p, of p^2, of g^2 and of v.
    """
    slope, lean, square = np.float32(0), np.float32(0), np.float32(0)
    signal, power = np.float32(0), np.float32(0)
    for i in range(theta.size):
        gradient = pull * column[i] + l2 * theta[i]
        ratio, g[i], v[i] = follow_gradient(gradient, g[i], v[i], weight)
        curvature = level * np.sqrt(relative_square(v[i], inverse))
        step = rule.learning_rate(ratio, curvature) * gradient
        direction[i] = step
        slope += gradient * step
        lean += theta[i] * step
        square += step * step
        signal += g[i] * g[i]
        power += v[i]
    return slope, lean, square, signal, power


@implements(prepare, RobustState)
def _prepare(state: Any, shape: Any, theta: Any, work: Any) -> None:
    state.sums[:] = 0.0
    if is_due(state) and measure(state, shape, theta, work, length.FEWEST):
        note_measurement(state)
    set_levels(state)


@implements(gather, RobustState)
def _collect(state: Any, block: Any) -> None:
    columns, number = block.column.size, block.number
    l2, signals, powers = np.float64(block.l2), 0.0, 0.0
    for j in range(block.row.size):
        here = slice(block.start + j * columns, block.start + (j + 1) * columns)
        slope, lean, square, signal, power = _direct_row(
            block.theta[j * columns : (j + 1) * columns],
            state.mean_gradient[here],
            state.mean_square[here],
            state.direction[here],
            block.column,
            block.row[j],
            block.l2,
            state.level[number],
            state.inverse[number],
            state.weight[number],
        )
        signals += signal
        powers += power
        state.sums[SLOPE] += slope
        if l2 > 0:
            state.sums[PULL] += l2 * lean
            state.sums[STIFFNESS] += l2 * square
    state.typical_square[number] = powers / block.theta.size
    state.memory[number] = rule.next_memory(state.memory[number], rule.noise_ratio(signals, powers))
