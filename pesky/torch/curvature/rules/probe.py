"""What can be said of an operation that nobody wrote a rule for: an estimate by random signs."""

from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors
from pesky.torch.curvature.rules.rule import Rule
from pesky.torch.curvature.rules.simple import curve

__all__ = ["PROBE", "probe_squared"]


def probe_squared(node: Node, curvature: Tensors) -> Tensors:
    """E[(J z sqrt(h))^2] = J^2 h if the entries of z are independent signs."""

    def root(h: Tensor) -> Tensor:
        return node.signs_like(h) * h.sqrt()

    found = node.backward([None if h is None else root(h) for h in curvature])
    return [None if one is None else one.square() for one in found]


def probe_curve(node: Node, slopes: Tensors) -> Tensors:
    """Estimate of the second derivative's diagonal; None if the operation turns out to be linear."""
    return curve(node, slopes, signs=True)


PROBE = Rule(probe_squared, probe_curve)
