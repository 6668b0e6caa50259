"""The direction of a robust step: the paper's, with curvatures that are measured seldom.

See docs/theory.md. A tensor's level is measured; how curvature is spread over its entries follows the
size of their gradients. Like those of the rule, these functions take floats, NumPy arrays or torch
tensors, and Numba compiles them.

The online engine has bbprop's curvature of every sample: there one stands for all samples until the next
is measured (`weighted_average`, `learn`), and is at least the mean of its tensor (`rate_along`).
"""

from pesky import rule
from pesky.rule import Number

__all__ = ["follow_gradient", "learn", "rate_along", "relative_square", "weighted_average"]


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


def weighted_average(mean: Number, sample: Number, memory: Number, weight: Number | None) -> Number:
    """Return the average after a sample that stands for `weight` of them; None: for itself.

    It moves the average so much further, but not beyond the sample.
    """
    if weight is None:
        return rule.average(mean, sample, memory)
    return mean - rule.larger(-weight, -memory) * ((sample - mean) / memory)


def learn(
    gradient: Number,
    curvature: Number,
    mean_gradient: Number,  # g
    mean_square: Number,  # v
    mean_curvature: Number,  # h
    memory: Number,  # tau
    curvature_floor: Number | None,
    weight: Number | None,
) -> tuple[Number, Number, Number, Number, Number]:
    """Do as the rule's `element_update` with a curvature that stands for `weight` samples."""
    mean_curvature = weighted_average(mean_curvature, abs(curvature), memory, weight)
    rate, mean_gradient, mean_square, _, memory = rule.element_update(
        gradient,
        mean_curvature,  # an average does not move towards itself
        mean_gradient,
        mean_square,
        mean_curvature,
        memory,
        curvature_floor,
    )
    return rate, mean_gradient, mean_square, mean_curvature, memory


def rate_along(
    mean_gradient: Number, mean_square: Number, mean_curvature: Number, trusted: Number | None
) -> Number:
    """Return g^2 / (h v), with h at least what is `trusted`; times the gradient, it is the direction."""
    ratio = rule.noise_ratio(mean_gradient * mean_gradient, mean_square)
    return rule.learning_rate(ratio, rule.at_least(mean_curvature, trusted))
