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
from pesky.online.changes import directional_pass, product_at
from pesky.online.passes import LARGEST

__all__ = [
    "count_initial",
    "count_move",
    "fill_signs",
    "is_due",
    "measure",
    "note_measurement",
    "set_levels",
    "start_counts",
]

# Entries of `counts`: initial samples and moves so far; at the last move that measured, the moves before
# and the steps that had been too long; and the measurements that the levels are over.
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
def note_measurement(state: Any) -> None:
    """Note that this move measured levels."""
    state.counts[MEASURED] = state.counts[MOVES]
    state.counts[ACCIDENTS] = _accidents(state)


@compiled
def count_move(state: Any) -> None:
    """Note a move."""
    state.counts[MOVES] += 1


# --- What -----------------------------------------------------------------------------------------


@compiled
def _mean_square(block: Any, signs: Any) -> Any:
    """Return the mean square of the product over a block, L2 included."""
    columns, l2, total = block.column.size, np.float64(block.l2), 0.0
    for j in range(block.row.size):
        row, row_change = np.float64(block.row[j]), np.float64(block.row_change[j])
        along = signs[block.start + j * columns : block.start + (j + 1) * columns]
        for i in range(columns):
            column, column_change = np.float64(block.column[i]), np.float64(block.column_change[i])
            product = product_at(row, column, row_change, column_change, l2, np.float64(along[i]))
            total += product * product
    return total / block.theta.size


@compiled_apart
def measure(state: Any, shape: Any, theta: Any, work: Any, longest: float) -> bool:
    """Take this sample's levels into the averages of so many at most; False: one is not finite.

    The signs are written to where the direction will be.
    """
    counts, blocks, signs = state.counts, state.level_square.size, state.direction
    fill_signs(signs, int(counts[INITIAL] + counts[MOVES]))
    directional_pass(shape, theta, work, signs)
    squares = np.empty(blocks, np.float64)
    for number in range(blocks):
        squares[number] = _mean_square(block_of(shape, theta, work, number, False), signs)
    if not np.isfinite(squares.sum()):
        return False
    memory = counts[MEMORY]
    for number in range(blocks):
        state.level_square[number], counts[MEMORY] = length.added(
            state.level_square[number], memory, squares[number], longest
        )
    return True


@compiled
def set_levels(state: Any) -> None:
    """Set what the entries of a block have in common in this step."""
    for number in range(state.level.size):
        level = np.float32(np.sqrt(state.level_square[number]))
        state.level[number] = rule.at_least(level, state.floor)
        typical = state.typical_square[number]
        state.inverse[number] = np.float32(min(1 / typical, LARGEST) if typical > 0 else 0.0)
        state.weight[number] = np.float32(1 / state.memory[number])
