"""Softmax and its logarithm, as layers and as losses; p are the probabilities."""

from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors
from pesky.torch.curvature.rules.rule import Rule

__all__ = ["RULES", "softmax_squared_of"]


def softmax_squared_of(p: Tensor, h: Tensor, dimension: int) -> Tensor:
    """dp_i/dx_j = p_i (d_ij - p_j), hence p_j^2 ((1 - p_j)^2 h_j + sum_{i != j} p_i^2 h_i).

    With the square expanded, p_j^2 ((1 - 2 p_j) h_j + sum_i p_i^2 h_i), it would be one pass less, and
    for p_j near 1 a difference of equal numbers, often below zero.
    """
    own = p.square().mul_(h)
    # In place: on a CPU, fresh memory costs more than the arithmetic. Rounding may leave less than own.
    others = (own.sum(dimension, keepdim=True) - own).clamp_(min=0)
    own.addcmul_(p, own, value=-1).addcmul_(p, own, value=-1)
    return others.mul_(p).mul_(p).add_(own)


def softmax_squared(node: Node, curvature: Tensors) -> Tensors:
    """Squared Jacobian of the softmax."""
    (h,) = curvature
    return [None if h is None else softmax_squared_of(node.saved("result"), h, node.saved_dimension())]


def softmax_bend(node: Node, slopes: Tensors) -> Tensors:
    """d^2 p_i / dx_j^2 = p_i ((d_ij - p_j)^2 - p_j (1 - p_j))."""
    (slope,) = slopes
    if slope is None:
        return [None]
    p = node.saved("result")
    total = (slope * p).sum(node.saved_dimension(), keepdim=True)
    return [slope * p * (1 - 2 * p) + total * (p.square() - p * (1 - p))]


def log_softmax_squared(node: Node, curvature: Tensors) -> Tensors:
    """d log p_i / dx_j = d_ij - p_j, hence (1 - p_j)^2 h_j + p_j^2 sum_{i != j} h_i."""
    (h,) = curvature
    if h is None:
        return [None]
    p = node.saved("result").exp()
    others = (h.sum(node.saved_dimension(), keepdim=True) - h).clamp_(min=0)  # but for rounding
    return [(1 - p).square_().mul_(h).addcmul_(p.square(), others)]


def log_softmax_bend(node: Node, slopes: Tensors) -> Tensors:
    """d^2 log p_i / dx_j^2 = -p_j (1 - p_j), whatever i is: cross-entropy's curvature p (1 - p)."""
    (slope,) = slopes
    if slope is None:
        return [None]
    p = node.saved("result").exp()
    return [-slope.sum(node.saved_dimension(), keepdim=True) * p * (1 - p)]


_SOFTMAX = Rule(softmax_squared, softmax_bend)

RULES: dict[str, Rule] = {
    "Softmax": _SOFTMAX,
    "SafeSoftmax": _SOFTMAX,
    "LogSoftmax": Rule(log_softmax_squared, log_softmax_bend),
}
