"""The fused update on the CPU: one pass over memory, compiled, without the interpreter lock.

A kernel is given the addresses of many tensors at once, so that a network of many small layers costs
one call. Rows of `table` are tensors, of `settings` their numbers; `chunks` lists (row, first, last),
the pieces that this call is to work on. Chunks are cut without regard to the number of threads, so
sums do not depend on it.
"""

from typing import Any

import numpy as np
from numba import carray
from numba.core import types
from numba.extending import intrinsic

from pesky import rule
from pesky.compiling.compiled import compiled, kernel, largest_of
from pesky.compiling.subnormals import flush_subnormals, restore_mode
from pesky.direction import follow_gradient, relative_square

__all__ = [
    "average_chunks",
    "conclude",
    "descend_chunks",
    "direct_chunks",
    "have_same_bits",
    "move_chunks",
    "observe_chunks",
    "sum_chunks",
    "update_chunks",
]

# Columns of `table`: addresses, and the number of entries. What is at address 0 is not there.
THETA, GRADIENT, CURVATURE, MEAN_GRADIENT, MEAN_SQUARE, MEAN_CURVATURE, MEMORIES, SIZE = range(8)
DIRECTION = 8
# Columns of `settings`. What comes in is multiplied by the two factors: 1 / scale under AMP.
GRADIENT_FACTOR, CURVATURE_FACTOR, DECAY, LR, FLOOR, MEMORY, RATE, LEVEL, INVERSE = range(9)
WEIGHT = 9

# Columns of the table of moves, whose theta and size are where they are in the other one.
ITERATE, STEP, AVERAGE = range(1, 4)

CHUNK = 16_384  # entries: seven such pieces of float32 fit into the second-level cache
BLOCK = 1024  # entries: five such pieces of float32 fit into the first-level one


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@compiled
def _piece(table: Any, column: int, row: int, first: int, last: int, settings: Any) -> Any:
    """Entries first to last of a tensor, as an array of the type of the settings."""
    address = table[row, column] + first * settings.itemsize
    return carray(_pointer(address), last - first, settings.dtype)


@compiled
def _pieces(
    table: Any, row: int, first: int, last: int, settings: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Entries first to last of theta, its gradient, and g, v and h."""
    return (
        _piece(table, THETA, row, first, last, settings),
        _piece(table, GRADIENT, row, first, last, settings),
        _piece(table, MEAN_GRADIENT, row, first, last, settings),
        _piece(table, MEAN_SQUARE, row, first, last, settings),
        _piece(table, MEAN_CURVATURE, row, first, last, settings),
    )


@kernel
def have_same_bits(pairs: Any) -> bool:
    """Whether two pieces of memory are alike; rows are both addresses and the length in 4 bytes."""
    for row in range(pairs.shape[0]):
        one = carray(_pointer(pairs[row, 0]), pairs[row, 2], np.int32)
        other = carray(_pointer(pairs[row, 1]), pairs[row, 2], np.int32)
        difference = np.int32(0)
        for i in range(one.size):
            difference |= one[i] ^ other[i]
        if difference != 0:
            return False
    return True


@compiled
def _finite_or(value: Any, before: Any) -> Any:
    """Return the value; where it is not finite, the one before."""
    return value if abs(value) < np.inf else before


@kernel
def move_chunks(
    table: Any, scales: Any, weight: Any, shows_average: bool, chunks: Any, held: Any
) -> None:
    """Take iterates into averages, move them by -scale times their direction, show one of both.

    Entries that would not be finite stay; `held` is their number in each chunk.
    """
    for k in range(chunks.shape[0]):
        row, first, last = chunks[k, 0], chunks[k, 1], chunks[k, 2]
        theta = _piece(table, THETA, row, first, last, scales)
        iterate = _piece(table, ITERATE, row, first, last, scales)
        direction = _piece(table, STEP, row, first, last, scales)
        average = _piece(table, AVERAGE, row, first, last, scales)
        scale = scales[row]
        stayed = scale - scale
        for i in range(theta.size):
            before = iterate[i]
            wanted = before - scale * direction[i]
            moved = _finite_or(wanted, before)
            stayed += wanted != moved
            mean = _finite_or(average[i] + weight * (before - average[i]), before)
            iterate[i] = moved
            average[i] = mean
            theta[i] = mean if shows_average else moved
        held[k] = stayed


@kernel
def sum_chunks(table: Any, settings: Any, chunks: Any, sums: Any) -> None:
    """Write each chunk's sums of gradient^2 and of |curvature|: finite only if every entry is.

    L2 has a part in the gradient, which matters here only where parameters are huge.
    """
    for k in range(chunks.shape[0]):
        row, first, last = chunks[k, 0], chunks[k, 1], chunks[k, 2]
        gradients = _piece(table, GRADIENT, row, first, last, settings)
        pull, push = settings[row, GRADIENT_FACTOR], settings[row, CURVATURE_FACTOR]
        power, bend = pull - pull, pull - pull
        if table[row, CURVATURE] != 0:
            curvatures = _piece(table, CURVATURE, row, first, last, settings)
            for i in range(gradients.size):  # one loop for both: memory is faster with two streams
                gradient = pull * gradients[i]
                power += gradient * gradient
                bend += abs(push * curvatures[i])
        else:
            for i in range(gradients.size):
                gradient = pull * gradients[i]
                power += gradient * gradient
        decay = settings[row, DECAY]
        if decay != 0:
            theta = _piece(table, THETA, row, first, last, settings)
            for i in range(theta.size):
                power += (decay * theta[i]) * (decay * theta[i])
        sums[k, 0], sums[k, 1] = power, bend


@compiled
def _update(
    theta: Any,
    gradients: Any,
    curvatures: Any,
    g: Any,
    v: Any,
    h: Any,
    tau: Any,
    pull: Any,
    bend: Any,
    decay: Any,
    lr: Any,
    floor: Any,
) -> Any:
    """Update entries; return how many stay, as they would not be finite."""
    stayed = lr - lr
    for i in range(theta.size):
        gradient = pull * gradients[i] + decay * theta[i]
        curvature = abs(bend * curvatures[i]) + decay
        rate, g[i], v[i], h[i], tau[i] = rule.element_update(
            gradient, curvature, g[i], v[i], h[i], tau[i], floor
        )
        moved = theta[i] - lr * rate * gradient
        theta[i] = _finite_or(moved, theta[i])
        stayed += moved != theta[i]
    return stayed


@compiled
def _update_stale(
    theta: Any,
    gradients: Any,
    g: Any,
    v: Any,
    h: Any,
    tau: Any,
    pull: Any,
    decay: Any,
    lr: Any,
    floor: Any,
) -> Any:
    """Do as `_update` without a new curvature: an average does not move towards itself."""
    stayed = lr - lr
    for i in range(theta.size):
        gradient = pull * gradients[i] + decay * theta[i]
        rate, g[i], v[i], _, tau[i] = rule.element_update(
            gradient, h[i], g[i], v[i], h[i], tau[i], floor
        )
        moved = theta[i] - lr * rate * gradient
        theta[i] = _finite_or(moved, theta[i])
        stayed += moved != theta[i]
    return stayed


@kernel
def update_chunks(table: Any, settings: Any, chunks: Any, held: Any) -> None:
    """Do the paper's Algorithm 1, with a rate for each entry; for `held` see `move_chunks`."""
    mode = flush_subnormals()
    for k in range(chunks.shape[0]):
        row, first, last = chunks[k, 0], chunks[k, 1], chunks[k, 2]
        theta, gradients, g, v, h = _pieces(table, row, first, last, settings)
        tau = _piece(table, MEMORIES, row, first, last, settings)
        pull, decay = settings[row, GRADIENT_FACTOR], settings[row, DECAY]
        lr, floor = settings[row, LR], settings[row, FLOOR]
        if table[row, CURVATURE] != 0:
            curvatures = _piece(table, CURVATURE, row, first, last, settings)
            bend = settings[row, CURVATURE_FACTOR]
            held[k, 0] = _update(
                theta, gradients, curvatures, g, v, h, tau, pull, bend, decay, lr, floor
            )
        else:
            held[k, 0] = _update_stale(theta, gradients, g, v, h, tau, pull, decay, lr, floor)
    restore_mode(mode)


@compiled
def _totals(g: Any, v: Any) -> tuple[Any, Any]:
    """Return the sums of g^2 and of v, apart from loops that write; see `_slope`."""
    signal, square = v[0] - v[0], v[0] - v[0]
    for i in range(v.size):
        signal += g[i] * g[i]
        square += v[i]
    return signal, square


@compiled
def _slope(theta: Any, gradients: Any, direction: Any, pull: Any, decay: Any) -> Any:
    """Return the sum of gradient times direction.

    A loop that sums and writes is compiled in two ways, of which the distance of the arrays in memory
    decides: the order of the sum, and so its last digit, would depend on where they happen to lie.
    """
    slope = decay - decay
    for i in range(theta.size):
        slope += (pull * gradients[i] + decay * theta[i]) * direction[i]
    return slope


@compiled
def _direct(
    theta: Any,
    gradients: Any,
    g: Any,
    v: Any,
    direction: Any,
    pull: Any,
    decay: Any,
    level: Any,
    inverse: Any,
    weight: Any,
) -> None:
    """Take entries into g and v, and write their direction."""
    for i in range(theta.size):
        gradient = pull * gradients[i] + decay * theta[i]
        ratio, g[i], v[i] = follow_gradient(gradient, g[i], v[i], weight)
        curvature = level * np.sqrt(relative_square(v[i], inverse))
        direction[i] = rule.learning_rate(ratio, curvature) * gradient


@kernel
def direct_chunks(table: Any, settings: Any, chunks: Any, sums: Any) -> None:
    """Take tensors into g and v, and write the direction of the robust dialect.

    The direction is p = g^2/(h v) gradient, with h = level sqrt(v / mean v), or the level where that is
    larger. Written for each chunk are the sums of gradient p, of g^2 and of v, which are taken while
    the entries are still in the first-level cache.
    """
    mode = flush_subnormals()
    for k in range(chunks.shape[0]):
        row = chunks[k, 0]
        pull, decay = settings[row, GRADIENT_FACTOR], settings[row, DECAY]
        level, inverse, weight = settings[row, LEVEL], settings[row, INVERSE], settings[row, WEIGHT]
        slope, signal, square = pull - pull, pull - pull, pull - pull
        for first in range(chunks[k, 1], chunks[k, 2], BLOCK):
            last = min(first + BLOCK, chunks[k, 2])
            gradients = _piece(table, GRADIENT, row, first, last, settings)
            # Without decay nothing but a zero comes of theta: it need not be read.
            theta = _piece(table, GRADIENT if decay == 0 else THETA, row, first, last, settings)
            g = _piece(table, MEAN_GRADIENT, row, first, last, settings)
            v = _piece(table, MEAN_SQUARE, row, first, last, settings)
            direction = _piece(table, DIRECTION, row, first, last, settings)
            _direct(theta, gradients, g, v, direction, pull, decay, level, inverse, weight)
            slope += _slope(theta, gradients, direction, pull, decay)
            of_block = _totals(g, v)
            signal += of_block[0]
            square += of_block[1]
        sums[k, 0], sums[k, 1], sums[k, 2] = slope, signal, square
    restore_mode(mode)


@compiled
def _largest_of(values: Any) -> float:
    """Do as `largest_of`, for float64 too."""
    if values.itemsize == 4:
        return np.float64(largest_of(values))
    bits = values.view(np.int64)
    largest = np.int64(0)
    for i in range(bits.size):
        largest = max(largest, bits[i])
    return np.int64(largest).view(np.float64)


@compiled
def _average(table: Any, settings: Any, row: int, first: int, last: int) -> tuple[Any, Any, Any]:
    """Take a chunk into g and h; return its sums of g^2 and gradient^2, and its largest h."""
    theta = _piece(table, THETA, row, first, last, settings)
    gradients = _piece(table, GRADIENT, row, first, last, settings)
    g = _piece(table, MEAN_GRADIENT, row, first, last, settings)
    pull, decay = settings[row, GRADIENT_FACTOR], settings[row, DECAY]
    memory = settings[row, MEMORY]
    signal, square = memory - memory, memory - memory
    for i in range(theta.size):
        gradient = pull * gradients[i] + decay * theta[i]
        g[i] = rule.average(g[i], gradient, memory)
        signal += g[i] * g[i]
        square += gradient * gradient
    if table[row, MEAN_CURVATURE] == 0:
        return signal, square, 0.0
    h = _piece(table, MEAN_CURVATURE, row, first, last, settings)
    if table[row, CURVATURE] != 0:
        curvatures = _piece(table, CURVATURE, row, first, last, settings)
        bend = settings[row, CURVATURE_FACTOR]
        for i in range(h.size):
            h[i] = rule.average(h[i], abs(bend * curvatures[i]) + decay, memory)
    return signal, square, _largest_of(h)


@kernel
def average_chunks(table: Any, settings: Any, chunks: Any, sums: Any) -> None:
    """Take tensors into g and h; write each chunk's sums of g^2 and gradient^2, and its largest h."""
    mode = flush_subnormals()
    for k in range(chunks.shape[0]):
        row, first, last = chunks[k, 0], chunks[k, 1], chunks[k, 2]
        sums[k, 0], sums[k, 1], sums[k, 2] = _average(table, settings, row, first, last)
    restore_mode(mode)


@kernel
def observe_chunks(table: Any, settings: Any, chunks: Any, sums: Any) -> None:
    """Do as `average_chunks`, and take the squared gradient into v where a tensor has one."""
    mode = flush_subnormals()
    for k in range(chunks.shape[0]):
        row, first, last = chunks[k, 0], chunks[k, 1], chunks[k, 2]
        sums[k, 0], sums[k, 1], sums[k, 2] = _average(table, settings, row, first, last)
        if table[row, MEAN_SQUARE] != 0:
            theta = _piece(table, THETA, row, first, last, settings)
            gradients = _piece(table, GRADIENT, row, first, last, settings)
            v = _piece(table, MEAN_SQUARE, row, first, last, settings)
            pull, decay = settings[row, GRADIENT_FACTOR], settings[row, DECAY]
            for i in range(theta.size):
                gradient = pull * gradients[i] + decay * theta[i]
                v[i] = rule.average(v[i], gradient * gradient, settings[row, MEMORY])
    restore_mode(mode)


@kernel
def descend_chunks(table: Any, settings: Any, chunks: Any, held: Any) -> None:
    """Move tensors against their gradients, each with one rate; for `held` see `move_chunks`."""
    mode = flush_subnormals()
    for k in range(chunks.shape[0]):
        row, first, last = chunks[k, 0], chunks[k, 1], chunks[k, 2]
        theta = _piece(table, THETA, row, first, last, settings)
        gradients = _piece(table, GRADIENT, row, first, last, settings)
        pull, decay = settings[row, GRADIENT_FACTOR], settings[row, DECAY]
        rate = settings[row, LR] * settings[row, RATE]
        stayed = rate - rate
        for i in range(theta.size):
            moved = theta[i] - rate * (pull * gradients[i] + decay * theta[i])
            theta[i] = _finite_or(moved, theta[i])
            stayed += moved != theta[i]
        held[k, 0] = stayed
    restore_mode(mode)


@kernel
def conclude(signal: Any, square: Any, largest: Any, power: Any, memory: Any, floor: Any) -> Any:
    """Return rate, power, memory and g^2/v of a shared rate, from sums over its tensors."""
    power = rule.average(power, square, memory)
    ratio = rule.noise_ratio(signal, power)
    rate = rule.learning_rate(ratio, rule.at_least(largest, floor))
    return rate, power, rule.next_memory(memory, ratio), ratio
