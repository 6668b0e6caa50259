"""Reductions that bend: each input goes to one output, but the inputs of an output curve together."""

from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors
from pesky.torch.curvature.rules.rule import Rule
from pesky.torch.curvature.rules.simple import curve, one_output_each

__all__ = ["RULES"]


def logsumexp_bend(node: Node, slopes: Tensors) -> Tensors:
    """y = log sum exp x: d^2 y / dx_j^2 = p_j (1 - p_j) with p = exp(x - y)."""
    (slope,) = slopes
    if slope is None:
        return [None]
    p = (node.saved("self") - _spread(node, node.saved("result"))).exp()
    return [_spread(node, slope) * p * (1 - p)]


def _spread(node: Node, reduced: Tensor) -> Tensor:
    """Give a reduced tensor its reduced dimensions back, with one entry each."""
    full = node.saved("self").dim()
    if reduced.dim() == full:
        return reduced
    for dimension in sorted(dimension % full for dimension in node.saved_dimensions()):
        reduced = reduced.unsqueeze(dimension)
    return reduced


def estimated_curve(node: Node, slopes: Tensors) -> Tensors:
    """Estimate the diagonal of a dense second derivative, without bias, by random signs."""
    return curve(node, slopes, signs=True)


RULES: dict[str, Rule] = {
    "Logsumexp": Rule(one_output_each, logsumexp_bend),
    **dict.fromkeys(
        ("LinalgVectorNorm", "Norm", "Prod", "Var", "Std"), Rule(one_output_each, estimated_curve)
    ),
}
