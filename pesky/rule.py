"""The arithmetic of "No More Pesky Learning Rates" (Schaul, Zhang and LeCun, ICML 2013).

Algorithm 1, for one parameter, one sample after another::

    g   <- (1 - 1/tau) g + 1/tau gradient         average
    v   <- (1 - 1/tau) v + 1/tau gradient^2       average
    h   <- (1 - 1/tau) h + 1/tau |curvature|      average
    eta <- g^2 / (h v)                            learning_rate
    tau <- (1 - g^2 / v) tau + 1                  next_memory
    theta <- theta - eta gradient

`element_update` is this loop's body; everything around it in this package is plumbing. Rates that
are shared use the same functions on sums over a block: the squared length of g for g^2, an average of
the gradient's squared length (the paper's l) for v, and the largest h of the block (h+) for h.

Every function takes floats, NumPy arrays or torch tensors, and Numba compiles it. So there are no
branches: a comparison is a 0 or a 1 to multiply with. And there are no literals: Numba would turn
float32 into float64 at the first `1.0`, while `True` adds one in whatever type the argument has.
"""

from math import inf
from typing import Any, TypeAlias

__all__ = [
    "at_least",
    "average",
    "element_update",
    "initial_samples",
    "is_finite_power",
    "larger",
    "learning_rate",
    "next_memory",
    "noise_ratio",
    "slow_start_factor",
]

Number: TypeAlias = Any  # a float, a NumPy array or a torch tensor; results have the same type
START_MEMORY = 2.0  # tau before the first step, and its floor in `next_memory`


def average(mean: Number, sample: Number, memory: Number) -> Number:
    """Return (1 - 1/tau) mean + 1/tau sample: with tau 1, 2, 3, ... the arithmetic mean so far."""
    return mean + (sample - mean) / memory


def larger(one: Number, other: Number) -> Number:
    """Return the larger of two numbers, neither of them NaN."""
    return (one > other) * one + (one <= other) * other


def noise_ratio(signal: Number, power: Number) -> Number:
    """Share of the signal in a gradient's power, g^2 / v: 1 without noise, 0 at an optimum.

    In exact arithmetic g^2 <= v; rounding can break that, so the larger of the two divides.
    Where both are zero the ratio is zero: nothing is known, nothing moves.
    """
    power = larger(signal, power)
    return signal / (power + (power == 0))


def learning_rate(ratio: Number, curvature: Number) -> Number:
    """Return eta* = ratio / h, and 0 where h^2 underflows: 1/h is finite for any other h."""
    flat = curvature * curvature == 0
    return (ratio - flat * ratio) / (curvature + flat)


def at_least(curvature: Number, floor: Number | None) -> Number:
    """Return h with its optional lower bound, the paper's epsilon; None leaves it alone."""
    if floor is None:
        return curvature
    return larger(curvature, floor)


def next_memory(memory: Number, ratio: Number) -> Number:  # memory: tau
    """Return (1 - ratio) tau + 1: a longer memory in calm, a short one after a large step.

    At tau = 1 every average equals its last sample, so ratio = 1 and tau would stay 1 for ever.
    What is kept of it is therefore at least one sample, which makes tau at least 2.
    """
    one = memory - memory + True  # in the type of memory
    return larger(memory - ratio * memory, one) + True


def element_update(
    gradient: Number,
    curvature: Number,
    mean_gradient: Number,  # g
    mean_square: Number,  # v
    mean_curvature: Number,  # h
    memory: Number,  # tau
    curvature_floor: Number | None = None,
) -> tuple[Number, Number, Number, Number, Number]:
    """Take one sample into the averages (Algorithm 1); return the rate and the new g, v, h, tau."""
    mean_gradient = average(mean_gradient, gradient, memory)
    mean_square = average(mean_square, gradient * gradient, memory)
    mean_curvature = average(mean_curvature, abs(curvature), memory)
    ratio = noise_ratio(mean_gradient * mean_gradient, mean_square)
    rate = learning_rate(ratio, at_least(mean_curvature, curvature_floor))
    return rate, mean_gradient, mean_square, mean_curvature, next_memory(memory, ratio)


def is_finite_power(power: Number) -> Number:
    """Whether a squared gradient (or a curvature) may enter the averages at all.

    One that may not is best dropped with its whole sample: an average never forgets infinity.
    """
    return power < inf


def slow_start_factor(dimension: int) -> float:
    """Return C = d/10, by which the first v (or l) and h are overestimated; never an underestimate."""
    return max(1.0, dimension / 10)


def initial_samples(training_samples: int) -> int:
    """Return n_0, the samples averaged before the first step: a thousandth of the data, at least one."""
    return max(1, training_samples // 1000)
