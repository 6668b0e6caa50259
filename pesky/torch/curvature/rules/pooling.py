"""Pooling by averages: an output is c times the sum of its window, so h passes backward as c h."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors
from pesky.torch.curvature.rules.rule import Rule

__all__ = ["RULES"]


def average_pool_squared(node: Node, curvature: Tensors) -> Tensors:
    """Windows of one size, except where they reach over the edge."""
    (h,) = curvature
    return [None] if h is None else node.backward([h * _window_shares(node, h)])


def _window_shares(node: Node, h: Tensor) -> Tensor | float:
    saved = node.function
    if saved._saved_divisor_override:
        return 1 / float(saved._saved_divisor_override)
    kernel, padding = saved._saved_kernel_size, saved._saved_padding
    stride = saved._saved_stride or kernel
    dimensions = len(kernel)
    pool = F.avg_pool2d if dimensions == 2 else F.avg_pool3d
    ones = h.new_ones(1, 1, *saved._saved_self.shape[-dimensions:])
    if saved._saved_count_include_pad:
        # Beyond the padding, where only ceil_mode reaches, nothing counts.
        ones = F.pad(ones, [side for size in reversed(padding) for side in (size, size)], value=1.0)
        padding = (0,) * dimensions
    counts = pool(ones, kernel, stride, padding, saved._saved_ceil_mode, True, 1)
    return 1 / counts[0, 0][tuple(slice(size) for size in h.shape[-dimensions:])]


def adaptive_pool_squared(node: Node, curvature: Tensors) -> Tensors:
    """Windows from floor(i n / m) to ceil((i + 1) n / m)."""
    (h,) = curvature
    if h is None:
        return [None]
    dimensions = 3 if "3D" in node.kind else 2
    inputs = node.function._saved_self.shape[-dimensions:]
    outputs = h.shape[-dimensions:]
    weighted = h
    for place, (n, m) in enumerate(zip(inputs, outputs, strict=True)):
        i = torch.arange(m, device=h.device)
        counts = (((i + 1) * n + m - 1) // m - i * n // m).to(h.dtype)
        weighted = weighted / counts.view(-1, *(1,) * (dimensions - 1 - place))
    return node.backward([weighted])


RULES: dict[str, Rule] = {
    "AvgPool2D": Rule(average_pool_squared),
    "AvgPool3D": Rule(average_pool_squared),
    "AdaptiveAvgPool2D": Rule(adaptive_pool_squared),
    "AdaptiveAvgPool3D": Rule(adaptive_pool_squared),
}
