"""The direction of a robust step: the paper's, with curvatures that are measured seldom.

See docs/theory.md. A tensor's level is measured; how curvature is spread over its entries follows the
size of their gradients. Like those of the rule, these functions take floats, NumPy arrays or torch
tensors, and Numba compiles them.
"""

from pesky import rule
from pesky.rule import Number

__all__ = ["follow_gradient", "relative_square"]


def follow_gradient(
    gradient: Number,
    mean_gradient: Number,  # g
    mean_square: Number,  # v
    memory: Number,  # tau
) -> tuple[Number, Number, Number, Number]:
    """Take a gradient into the averages as the rule does; return g^2/v and the new g, v, tau."""
    mean_gradient = rule.average(mean_gradient, gradient, memory)
    mean_square = rule.average(mean_square, gradient * gradient, memory)
    ratio = rule.noise_ratio(mean_gradient * mean_gradient, mean_square)
    return ratio, mean_gradient, mean_square, rule.next_memory(memory, ratio)


def relative_square(mean_square: Number, inverse: Number) -> Number:
    """Return v in units of its tensor's mean, whose `inverse` is given; at least 1.

    Its root, times the tensor's level, is the curvature of an entry.
    """
    one = inverse - inverse + True
    return rule.larger(mean_square * inverse, one)
