"""Second derivatives of hidden units that saturate: what Gauss and Newton's approximation leaves out."""

from torch import Tensor

from pesky.torch.curvature.node import Node

__all__ = ["saturates", "saturation"]


def saturates(node: Node) -> bool:
    """Whether the operation is a unit that saturates at both ends."""
    return node.kind in ("Tanh", "Sigmoid")


def saturation(node: Node, pull: Tensor) -> Tensor:
    """Return |sum of g f''| over the batch, divided among its samples as |g f''| is.

    Samples may cancel each other, as they do in the Hessian of their mean.
    """
    z: Tensor = node.saved("result")
    bent = pull * (-2 * z * (1 - z * z) if node.kind == "Tanh" else z * (1 - z) * (1 - 2 * z))
    sizes = bent.abs()
    if sizes.dim() < 2:  # a single sample
        return sizes
    total = sizes.sum(0, keepdim=True)
    return sizes * (bent.sum(0, keepdim=True).abs() / (total + (total == 0)))
