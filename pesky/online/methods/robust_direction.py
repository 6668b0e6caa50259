"""The robust form's direction: the paper's step, curvatures raised to at least their block's mean."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pesky import rule
from pesky.compiling.compiled import compiled
from pesky.direction import learn, rate_along
from pesky.online.blocks import counts_saturation, gather, implements, prepare
from pesky.online.passes import Floats, Integers

__all__ = ["PULL", "SLOPE", "STIFFNESS", "RobustState"]

SLOPE, PULL, STIFFNESS = range(3)  # g.p; and of the L2 penalty along p, slope and curvature


class RobustState(NamedTuple):
    """While training, the network's parameters are the iterate."""

    mean_gradient: Floats  # g, one a parameter
    mean_square: Floats  # v, likewise
    mean_curvature: Floats  # h, likewise
    memory: Floats  # tau, likewise
    direction: Floats  # p, likewise
    iterate: Floats  # as training was left
    previous: Floats  # iterate
    average: Floats  # of the iterates
    trusted: Floats  # the curvature that entries of a block have at least, one a block
    sizes: Integers  # of the blocks
    sums: NDArray[np.float64]  # of this step, over all blocks
    numbers: NDArray[np.float64]  # fields of `pesky.length.Length`
    floor: np.float32 | None
    curvature_weight: np.float32 | None  # how many samples one with curvature stands for; None: itself


@compiled
def _learn_row(
    theta: Any,
    g: Any,
    v: Any,
    h: Any,
    tau: Any,
    column: Any,
    column_square: Any,
    pull: Any,
    bend: Any,
    l2: Any,
    fresh: bool,
    weight: Any,
) -> Any:
    """Take a row of the gradient into the averages; return the sum of h."""
    total = np.float32(0)
    if fresh:
        for i in range(theta.size):
            _, g[i], v[i], h[i], tau[i] = learn(
                pull * column[i] + l2 * theta[i],
                bend * column_square[i] + l2,
                g[i],
                v[i],
                h[i],
                tau[i],
                None,
                weight,
            )
            total += h[i]
    else:
        for i in range(theta.size):
            _, g[i], v[i], h[i], tau[i] = rule.element_update(
                pull * column[i] + l2 * theta[i], h[i], g[i], v[i], h[i], tau[i]
            )
            total += h[i]
    return total


@compiled
def _direct_row(
    theta: Any,
    g: Any,
    v: Any,
    h: Any,
    direction: Any,
    column: Any,
    pull: Any,
    l2: Any,
    trusted: Any,
) -> tuple[Any, Any, Any]:
    """Write a row of p; return its sums of gradient p, of theta p and of p^2."""
    slope, lean, square = np.float32(0), np.float32(0), np.float32(0)
    for i in range(theta.size):
        gradient = pull * column[i] + l2 * theta[i]
        step = rate_along(g[i], v[i], h[i], trusted) * gradient
        direction[i] = step
        slope += gradient * step
        lean += theta[i] * step
        square += step * step
    return slope, lean, square


@implements(counts_saturation, RobustState)
def _counts_saturation(state: Any) -> bool:
    return True


@implements(prepare, RobustState)
def _prepare(state: Any, shape: Any, theta: Any, work: Any) -> None:
    state.sums[:] = 0.0


@implements(gather, RobustState)
def _collect(state: Any, block: Any) -> None:
    columns = block.column.size
    total = 0.0
    for j in range(block.row.size):
        here = slice(block.start + j * columns, block.start + (j + 1) * columns)
        total += _learn_row(
            block.theta[j * columns : (j + 1) * columns],
            state.mean_gradient[here],
            state.mean_square[here],
            state.mean_curvature[here],
            state.memory[here],
            block.column,
            block.column_square,
            block.row[j],
            block.row_curvature[j],
            block.l2,
            block.fresh,
            state.curvature_weight,
        )
    # An entry's curvature below its block's mean is not believed.
    trusted = rule.at_least(np.float32(total / block.theta.size), state.floor)
    state.trusted[block.number] = trusted
    l2 = np.float64(block.l2)
    for j in range(block.row.size):
        here = slice(block.start + j * columns, block.start + (j + 1) * columns)
        slope, lean, square = _direct_row(
            block.theta[j * columns : (j + 1) * columns],
            state.mean_gradient[here],
            state.mean_square[here],
            state.mean_curvature[here],
            state.direction[here],
            block.column,
            block.row[j],
            block.l2,
            trusted,
        )
        state.sums[SLOPE] += slope
        if l2 > 0:
            state.sums[PULL] += l2 * lean
            state.sums[STIFFNESS] += l2 * square
