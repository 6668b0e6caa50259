"""Products of matrices and convolutions: the same product, of squares.

y_ik = sum_j a_ij b_jk has dy_ik / da_ij = b_jk, so h of a is h of y times the squares of b, transposed.
"""

import torch
from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors
from pesky.torch.curvature.rules.rule import Rule

__all__ = ["RULES"]


def _factor(node: Node, name: str) -> float:
    return float(getattr(node.function, f"_saved_{name}")) ** 2


def _product(
    node: Node, h: Tensor, names: tuple[str, str], edges: tuple[int, int]
) -> list[Tensor | None]:
    """Return h of both factors of a (batched) matrix product."""
    left, right = names
    of_left = of_right = None
    if node.edges[edges[0]] is not None:
        of_left = h @ node.saved(right).square().mT
    if node.edges[edges[1]] is not None:
        squares = node.saved(left).square()
        # A weight is used transposed, and its curvature should lie in memory as it does.
        columns = getattr(node.function, f"_saved_{right}_sym_strides", (0, 0))[0] == 1
        of_right = (h.mT @ squares).mT if columns else squares.mT @ h
    return [of_left, of_right]


def mm_squared(node: Node, curvature: Tensors) -> Tensors:
    """y = a b, for one pair of matrices or a batch of them."""
    (h,) = curvature
    return [None, None] if h is None else _product(node, h, ("self", "mat2"), (0, 1))


def addmm_squared(node: Node, curvature: Tensors) -> Tensors:
    """y = beta c + alpha a b: a linear layer with its bias c."""
    (h,) = curvature
    if h is None:
        return [None, None, None]
    names = ("batch1", "batch2") if node.kind == "Baddbmm" else ("mat1", "mat2")
    beta, alpha = _factor(node, "beta"), _factor(node, "alpha")
    products = _product(node, h, names, (1, 2))
    scaled = [one if one is None or alpha == 1 else one * alpha for one in products]
    return [h if beta == 1 else h * beta, *scaled]


def mv_squared(node: Node, curvature: Tensors) -> Tensors:
    """y = a x."""
    (h,) = curvature
    if h is None:
        return [None, None]
    return [
        None if node.edges[0] is None else torch.outer(h, node.saved("vec").square()),
        None if node.edges[1] is None else node.saved("self").square().mT @ h,
    ]


def dot_squared(node: Node, curvature: Tensors) -> Tensors:
    """y = a . b."""
    (h,) = curvature
    if h is None:
        return [None, None]
    return [
        None if node.edges[0] is None else h * node.saved("tensor").square(),
        None if node.edges[1] is None else h * node.saved("self").square(),
    ]


def linear_squared(node: Node, curvature: Tensors) -> Tensors:
    """y = x w^T + b, where it is recorded as one operation."""
    (h,) = curvature
    if h is None:
        return [None] * len(node.edges)
    x = node.saved("input").square()
    inner = (x.flatten(0, -2), h.flatten(0, -2))
    return [
        None if node.edges[0] is None else h @ node.saved("weight").square(),
        None if node.edges[1] is None else inner[1].mT @ inner[0],
        *([inner[1].sum(0)] if len(node.edges) > 2 else []),
    ]


def convolution_squared(node: Node, curvature: Tensors) -> Tensors:
    """Convolve squares: any dimension, groups, strides, and transposed ones."""
    (h,) = curvature
    if h is None:
        return [None, None, None]
    saved = node.function
    needed = [edge is not None for edge in node.edges]
    bias_size = saved._saved_bias_sym_sizes_opt if needed[2] else [0]
    found = torch.ops.aten.convolution_backward(
        h.contiguous() if not h.is_contiguous() and h.dim() != 4 else h,
        node.saved("input").square() if needed[1] else node.saved("input"),
        node.saved("weight").square() if needed[0] else node.saved("weight"),
        bias_size,
        saved._saved_stride,
        saved._saved_padding,
        saved._saved_dilation,
        saved._saved_transposed,
        saved._saved_output_padding,
        saved._saved_groups,
        needed,
    )
    return list(found)


RULES: dict[str, Rule] = {
    "Mm": Rule(mm_squared, mixes=True),
    "Bmm": Rule(mm_squared, mixes=True),
    "Addmm": Rule(addmm_squared, mixes=True),
    "Baddbmm": Rule(addmm_squared, mixes=True),
    "Mv": Rule(mv_squared, mixes=True),
    "Dot": Rule(dot_squared, mixes=True),
    "Linear": Rule(linear_squared, mixes=True),
    "Convolution": Rule(convolution_squared, mixes=True),
}
