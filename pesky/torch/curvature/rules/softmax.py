"""Softmax and its logarithm, as layers and as losses; p are the probabilities."""

from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors
from pesky.torch.curvature.rules.rule import Rule

__all__ = ["RULES", "softmax_squared_of"]


def softmax_squared_of(p: Tensor, h: Tensor, dimension: int) -> Tensor:
    """dp_i/dx_j = p_i (d_ij - p_j), hence p_j^2 ((1 - 2 p_j) h_j + sum_i p_i^2 h_i)."""
    squares = p.square()
    weighted = squares * h
    total = weighted.sum(dimension, keepdim=True)
    # In place: on a CPU, fresh memory costs more than the arithmetic.
    return weighted.addcmul_(p, weighted, value=-2).addcmul_(squares, total)


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
    """d log p_i / dx_j = d_ij - p_j, hence (1 - 2 p_j) h_j + p_j^2 sum_i h_i."""
    (h,) = curvature
    if h is None:
        return [None]
    p = node.saved("result").exp()
    return [h * (1 - 2 * p) + p.square() * h.sum(node.saved_dimension(), keepdim=True)]


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
