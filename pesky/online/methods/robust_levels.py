"""Levels of blocks: how strongly their gradients change with the parameters, measured now and then.

A measurement is the product of one sample's Hessian with random signs; its mean square over a block is
that of the lengths of the Hessian's rows. See docs/theory.md, and `pesky.torch.step.levels`.
"""

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pesky import length, rule
from pesky.compiling.compiled import compiled, compiled_apart
from pesky.online.blocks import block_of
from pesky.online.changes import directional_pass
from pesky.online.passes import LARGEST

__all__ = [
    "count_initial",
    "count_move",
    "fill_signs",
    "is_due",
    "measure",
    "set_levels",
    "start_counts",
]

# Entries of `counts`: initial samples and moves so far; at the last measurement the moves and the steps
# that had been too long; and the measurements that the levels are over.
INITIAL, MOVES, MEASURED, ACCIDENTS, MEMORY = range(5)
_NEVER = -1.0  # for MEASURED

# SplitMix64 (Steele, Lea and Flood, 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def start_counts() -> NDArray[np.float64]:
    """Return the counts before any sample."""
    counts = np.zeros(5)
    counts[MEASURED] = _NEVER
    return counts


@compiled
def _mixed(number: Any) -> Any:
    number = (number ^ (number >> np.uint64(30))) * _FIRST
    number = (number ^ (number >> np.uint64(27))) * _SECOND
    return number ^ (number >> np.uint64(31))


@compiled_apart
def fill_signs(signs: Any, seed: int) -> None:
    """Fill an array with 1 and -1, which depend on the seed alone."""
    number = _mixed(np.uint64(seed) * _GOLDEN)
    for i in range(signs.size):
        number += _GOLDEN
        signs[i] = np.float32(1) if _mixed(number) >> np.uint64(63) else np.float32(-1)


# --- When -----------------------------------------------------------------------------------------


@compiled
def _interval(moves: int, every: Any) -> float:
    """Return how many moves there are to a measurement, `every` at most; None sets no limit."""
    if every is None:
        return length.interval(moves, inf)
    return length.interval(moves, every)


@compiled
def _accidents(state: Any) -> Any:
    """Return how many steps were too long so far."""
    known = length.record_of(state.numbers)
    return known.shortened + known.restored


@compiled
def is_due(state: Any) -> Any:
    """Whether to measure: seldom, but after an accident, and where a block has no level, at once."""
    counts = state.counts
    if counts[MEASURED] < 0 or _accidents(state) > counts[ACCIDENTS] or state.level_square.min() == 0:
        return True
    return counts[MOVES] - counts[MEASURED] >= _interval(int(counts[MOVES]), state.every)


@compiled
def count_initial(state: Any) -> None:
    """Note that an initial sample was seen."""
    state.counts[INITIAL] += 1


@compiled
def count_move(state: Any) -> None:
    """Note a move."""
    state.counts[MOVES] += 1


# --- What -----------------------------------------------------------------------------------------


@compiled
def _powers(values: Any, changes: Any) -> tuple[float, float, float]:
    """Return the sums of value^2, of value change and of change^2."""
    square, product, change_square = 0.0, 0.0, 0.0
    for i in range(values.size):
        value, change = np.float64(values[i]), np.float64(changes[i])
        square += value * value
        product += value * change
        change_square += change * change
    return square, product, change_square


@compiled
def _mean_square(block: Any) -> Any:
    """Return the mean of (row_change column + row column_change)^2 over the entries of a block."""
    row, row_product, row_change = _powers(block.row, block.row_change)
    column, column_product, column_change = _powers(block.column, block.column_change)
    total = row_change * column + 2 * row_product * column_product + row * column_change
    return abs(total) / block.theta.size  # which rounding can make negative


@compiled_apart
def measure(state: Any, shape: Any, theta: Any, work: Any, longest: float) -> None:
    """Take this sample's levels into the averages of so many at most, unless one is not finite.

    The signs are written to where the direction will be.
    """
    counts, blocks = state.counts, state.level_square.size
    fill_signs(state.direction, int(counts[INITIAL] + counts[MOVES]))
    directional_pass(shape, theta, work, state.direction)
    squares = np.empty(blocks, np.float64)
    for number in range(blocks):
        block = block_of(shape, theta, work, number, False)
        level = np.sqrt(_mean_square(block)) + np.float64(block.l2)
        squares[number] = level * level
    if not np.isfinite(squares.sum()):
        return
    memory = counts[MEMORY]
    for number in range(blocks):
        state.level_square[number], counts[MEMORY] = length.added(
            state.level_square[number], memory, squares[number], longest
        )
    counts[MEASURED] = counts[MOVES]
    counts[ACCIDENTS] = _accidents(state)


@compiled
def set_levels(state: Any) -> None:
    """Set what the curvatures of the blocks' entries are made of in this step."""
    for number in range(state.level.size):
        level = np.float32(np.sqrt(state.level_square[number]))
        state.level[number] = rule.at_least(level, state.floor)
        typical = state.typical_square[number]
        state.inverse[number] = np.float32(min(1 / typical, LARGEST) if typical > 0 else 0.0)
