"""Walks over the graph that autograd recorded, which look at it and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

__all__ = ["edges_below", "is_leaf", "leaves_below"]


def edges_below(
    tensor: Tensor, is_end: Callable[[Any, int], bool] | None = None
) -> Iterator[tuple[Any, int]]:
    """Yield the nodes of a graph, and which of their outputs were used; nothing below an end."""
    seen: set[Any] = set()
    waiting: list[tuple[Any, int]] = [(tensor.grad_fn, tensor.output_nr)]
    while waiting:
        edge = waiting.pop()
        node, number = edge
        if node is None or edge in seen:
            continue
        seen.add(edge)
        yield edge
        if is_end is None or not is_end(node, number):
            waiting += node.next_functions


def is_leaf(node: Any) -> bool:
    """Whether a node stands for a leaf, which is its `variable`."""
    return bool(node.name().endswith("AccumulateGrad"))


def leaves_below(tensor: Tensor) -> list[Tensor]:
    """Return the leaves that a tensor was computed from."""
    return [node.variable for node, _ in edges_below(tensor) if is_leaf(node)]
