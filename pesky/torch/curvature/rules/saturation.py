"""Second derivatives of hidden units that saturate: what Gauss and Newton's approximation leaves out."""

from torch import Tensor

from pesky.torch.curvature.node import Node

__all__ = ["saturates", "saturation"]


def saturates(node: Node) -> bool:
    """Whether the operation is a unit that saturates at both ends."""
    return node.kind in ("Tanh", "Sigmoid")


def saturation(node: Node, pull: Tensor) -> Tensor:
    """Return |sum of g f''| over the samples (dimension 0), divided among them as |g f''| is.

    Samples may cancel each other, as they do in the Hessian of their mean. Vectors, and functions of
    parameters themselves, have no samples.
    """
    z: Tensor = node.saved("result")
    second = (z * z).neg_().add_(1).mul_(-2 * z) if node.kind == "Tanh" else z * (1 - z) * (1 - 2 * z)
    bent = second.mul_(pull)
    sizes = bent.abs()
    (edge,) = node.edges
    if sizes.dim() < 2 or (edge is not None and edge.is_leaf):
        return sizes
    total = sizes.sum(0, keepdim=True)
    return sizes.mul_(bent.sum(0, keepdim=True).abs_().div_(total + (total == 0)))
