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
    weight: Number,  # 1 / tau, which all entries of a tensor share
) -> tuple[Number, Number, Number]:
    """Take a gradient into the averages as the rule does; return g^2/v and the new g and v.

    A product with the weight is the rule's division by the memory, and several times as fast.
    """
    mean_gradient = mean_gradient + weight * (gradient - mean_gradient)
    mean_square = mean_square + weight * (gradient * gradient - mean_square)
    return rule.noise_ratio(mean_gradient * mean_gradient, mean_square), mean_gradient, mean_square


def relative_square(mean_square: Number, inverse: Number) -> Number:
    """Return v in units of its tensor's mean, whose `inverse` is given; at least 1.

    Its root, times the tensor's level, is the curvature of an entry.
    """
    one = inverse - inverse + True
    return rule.larger(mean_square * inverse, one)
