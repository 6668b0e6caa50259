"""The direction of a robust step: the paper's, from seldom curvatures, of which the least are raised.

See docs/theory.md. What a step adds to the rule of the paper: a curvature stands for all steps until the
next one is measured, and a curvature below the mean of its tensor is raised to that mean. Like those of
the rule, these functions take floats, NumPy arrays or torch tensors, and Numba compiles them.
"""

from pesky import rule
from pesky.rule import Number

__all__ = ["learn", "rate_along", "weighted_average"]


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
