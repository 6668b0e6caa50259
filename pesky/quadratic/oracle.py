"""The oracle's rates: the paper's, from the true moments of the noisy quadratic."""

from pesky.rule import Number, learning_rate, noise_ratio

__all__ = ["ideal_global_rate", "ideal_moments", "ideal_rate"]


def ideal_moments(distance: Number, curvature: Number, noise: Number) -> tuple[Number, Number]:
    """E[gradient]^2 and E[gradient^2] on the noisy quadratic, which vSGD can only estimate.

    `distance` is theta - theta*, `noise` the deviation sigma of the samples' own optima.
    """
    mean_gradient = curvature * distance
    deviation = curvature * noise
    signal = mean_gradient * mean_gradient
    return signal, signal + deviation * deviation


def ideal_rate(distance: Number, curvature: Number, noise: Number) -> Number:
    """Return the oracle's rate of one parameter: 1/h distance^2 / (distance^2 + sigma^2)."""
    signal, power = ideal_moments(distance, curvature, noise)
    return learning_rate(noise_ratio(signal, power), curvature)


def ideal_global_rate(signal: Number, power: Number, weighted_power: Number) -> Number:
    """Return the oracle's common rate from sums over parameters of `ideal_moments` and of h E[grad^2].

    The paper's sum h^2 distance^2 / sum h^3 (distance^2 + sigma^2), split into noise ratio and
    curvature: a mean of the h_i weighted by power, hence never above h+.
    """
    return learning_rate(noise_ratio(signal, power), weighted_power / (power + (power == 0)))
