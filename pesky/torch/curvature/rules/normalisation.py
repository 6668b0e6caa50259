"""Normalisations. With z = (x - mean) / deviation over n numbers, and y = w z + b,

    dz_i / dx_j = (d_ij - (1 + z_i z_j) / n) / deviation

so that the sum over i of its square times k_i = w_i^2 h_i needs three sums over i only.
"""

from typing import NamedTuple

from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors
from pesky.torch.curvature.rules.rule import Rule

__all__ = ["RULES"]


class Moments(NamedTuple):
    """Sums over i of k_i, k_i z_i and k_i z_i^2."""

    k: Tensor
    kz: Tensor
    kzz: Tensor


def _moments(z: Tensor, k: Tensor, dimensions: tuple[int, ...]) -> tuple[Moments, Tensor]:
    """Return the sums, and k z^2 itself."""
    kz = k * z
    kzz = kz * z
    return Moments(*(one.sum(dimensions, keepdim=True) for one in (k, kz, kzz))), kzz


def _standardised_squared(z: Tensor, k: Tensor, kzz: Tensor, sums: Moments, factor: Tensor) -> Tensor:
    """Return the sum over i of k_i (dz_i / dx_j)^2, times `factor`."""
    n = k.numel() // sums.k.numel()
    # In place, and never two broadcast operands at a time, which is slow.
    inside = (z * (sums.kzz / n**2)).add_(sums.kz * (2 / n**2)).mul_(z).add_(sums.k / n**2)
    inside.add_(k, alpha=1 - 2 / n).add_(kzz, alpha=-2 / n)
    # A sum of squares, but for rounding.
    return inside.mul_(factor).clamp_(min=0)


def batch_norm_squared(node: Node, curvature: Tensors) -> Tensors:
    """Standardise each channel over the batch; in evaluation by constants."""
    h = curvature[0]
    if h is None:
        return [None, None, None]
    x, weight = node.saved("input"), node.saved("weight")
    shape = (1, -1, *(1,) * (x.dim() - 2))
    dimensions = (0, *range(2, x.dim()))
    training = node.saved("training")
    if training:
        mean, inverse_deviation = node.saved("result1"), node.saved("result2")
    else:
        mean = node.saved("running_mean")
        inverse_deviation = (node.saved("running_var") + node.saved("eps")).rsqrt()
    inverse_deviation = inverse_deviation.view(shape)
    z = (x - mean.view(shape)).mul_(inverse_deviation)
    sums, hzz = _moments(z, h, dimensions)
    of_x = None
    if node.edges[0] is not None:
        factor = inverse_deviation if weight is None else inverse_deviation * weight.view(shape)
        factor = factor.square()
        of_x = _standardised_squared(z, h, hzz, sums, factor) if training else h * factor
    return [of_x, sums.kzz.flatten(), sums.k.flatten()]


def layer_norm_squared(node: Node, curvature: Tensors) -> Tensors:
    """Standardise each sample over its last dimensions."""
    h = curvature[0]
    if h is None:
        return [None, None, None]
    x, weight = node.saved("input"), node.saved("weight")
    inside = tuple(range(x.dim() - len(node.function._saved_normalized_shape), x.dim()))
    z = (x - node.saved("result1")).mul_(node.saved("result2"))
    of_x = None
    if node.edges[0] is not None:
        k = h if weight is None else h * weight.square()
        sums, kzz = _moments(z, k, inside)
        of_x = _standardised_squared(z, k, kzz, sums, node.saved("result2").square())
    return [of_x, None if node.edges[1] is None else h * z.square(), h]


def group_norm_squared(node: Node, curvature: Tensors) -> Tensors:
    """Standardise groups of channels of each sample."""
    h = curvature[0]
    if h is None:
        return [None, None, None]
    x, weight = node.saved("input"), node.saved("weight")
    samples, channels = x.shape[:2]
    grouped = (samples, node.function._saved_group, -1)
    mean, inverse_deviation = (node.saved(name).view(samples, -1, 1) for name in ("result1", "result2"))
    z = (x.reshape(grouped) - mean) * inverse_deviation
    shape = (1, channels, *(1,) * (x.dim() - 2))
    outside = (0, *range(2, x.dim()))
    of_x = None
    if node.edges[0] is not None:
        k = (h if weight is None else h * weight.view(shape).square()).reshape(grouped)
        sums, kzz = _moments(z, k, (2,))
        of_x = _standardised_squared(z, k, kzz, sums, inverse_deviation.square()).view(x.shape)
    return [of_x, (h * z.view(x.shape).square()).sum(outside), h.sum(outside)]


RULES: dict[str, Rule] = {
    "NativeBatchNorm": Rule(batch_norm_squared, mixes=True),
    "NativeLayerNorm": Rule(layer_norm_squared, mixes=True),
    "NativeGroupNorm": Rule(group_norm_squared, mixes=True),
}
