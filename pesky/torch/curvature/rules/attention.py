"""Scaled dot-product attention as one operation: y = p v, p = softmax(s), s = c q k^T + mask."""

import math

import torch
from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors, UnsupportedGraph
from pesky.torch.curvature.rules.rule import Rule
from pesky.torch.curvature.rules.softmax import softmax_squared_of

__all__ = ["RULES"]


def attention_squared(node: Node, curvature: Tensors) -> Tensors:
    """Pass h through the product with v, the softmax, and the product of q and k, one after another."""
    h = curvature[0]
    if h is None:
        return [None] * len(node.edges)
    if node.function._saved_dropout_p:
        raise UnsupportedGraph(f"{node.name} with dropout does not tell which of its entries it dropped")
    q, k, v = (node.saved(name) for name in ("query", "key", "value"))
    c = node.function._saved_scale
    c = 1 / math.sqrt(q.shape[-1]) if c is None else float(c)
    p = _probabilities((q @ k.mT).mul_(c), _mask(node, q, k))
    of_s = softmax_squared_of(p, h @ v.square().mT, -1).mul_(c**2)
    found = [of_s @ k.square(), of_s.mT @ q.square(), p.square_().mT @ h]
    return found + [None] * (len(node.edges) - 3)


def _probabilities(s: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax of masked scores; a row of which all is hidden has none, and its y is zero."""
    if mask is None:
        return s.softmax(-1)
    p = s.add_(mask).softmax(-1)
    hidden = mask.amax(-1, keepdim=True) == -math.inf
    return p.masked_fill_(hidden, 0) if hidden.any() else p


def _mask(node: Node, q: Tensor, k: Tensor) -> Tensor | None:
    if node.function._saved_is_causal:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        return torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, -math.inf)
    mask: Tensor | None = node.saved("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -math.inf)
    return mask


RULES: dict[str, Rule] = {
    "ScaledDotProductFlashAttentionForCpu": Rule(attention_squared, mixes=True),
}
