"""What a loop computes from a watched model's outputs: the loss, as a function of them to second order.

Nobody can call that part of a loss again. But its graph has a gradient g and second derivatives H, so
that the loss at other outputs, which the model can be called again for, is `L + g.d + d.Hd / 2` with
the change d of the outputs. For squared errors that is exact.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from pesky.torch.loss.again import Evaluation, Manner, Unrepeatable
from pesky.torch.loss.calls import Call, Mark, buffers_before, marks_below, marks_on

__all__ = ["Head", "head_of"]


class Head:
    """The part of a loss that comes after marked outputs; its graph is kept for second derivatives."""

    def __init__(self, loss: Tensor, edges: Sequence[tuple[Any, int]]) -> None:
        """Differentiate it."""
        self._marks: list[Mark] = [marks_on(node)[number] for node, number in edges]
        self._loss = loss.detach()
        self._inputs = [GradientEdge(*edge) for edge in edges]
        self._before = [mark.value for mark in self._marks if mark.value is not None]
        with torch.enable_grad():
            self._slopes = torch.autograd.grad(loss, self._inputs, create_graph=True)
        self.calls = list(dict.fromkeys(one for mark in self._marks for one in mark.call.sources()))

    def backward(self, factor: float) -> None:
        """Do the backward pass of the loss times a factor, without freeing the graph of this part."""
        torch.autograd.backward(self._inputs, [slope.detach() * factor for slope in self._slopes])

    def compute(self) -> Tensor:
        """Return the loss at the present parameters."""
        done: dict[Call, list[Any]] = {}
        there = [mark.call.repeated(done)[mark.place] for mark in self._marks]
        if any(one.shape != before.shape for one, before in zip(there, self._before, strict=True)):
            raise Unrepeatable(
                "the outputs of the watched model have other shapes when it is called again"
            )
        changes = [one.detach() - before for one, before in zip(there, self._before, strict=True)]
        products = self._products(changes)
        value, surrogate = self._loss.clone(), torch.zeros_like(self._loss)
        for one, change, slope, product in zip(there, changes, self._slopes, products, strict=True):
            value += _dot(slope.detach() + product / 2, change)
            surrogate = surrogate + _dot(one, slope.detach() + product)
        return value + (surrogate - surrogate.detach())  # the value of one, the gradient of the other

    def _products(self, changes: Sequence[Tensor]) -> list[Tensor]:
        """Return the second derivatives times a change of the outputs."""
        bent = [k for k, slope in enumerate(self._slopes) if slope.requires_grad]
        zeros = [torch.zeros_like(slope) for slope in self._slopes]
        if not bent:
            return zeros
        found = torch.autograd.grad(
            [self._slopes[k] for k in bent],
            self._inputs,
            [changes[k].to(self._slopes[k].dtype) for k in bent],
            retain_graph=True,
            allow_unused=True,
        )
        return [zero if one is None else one for zero, one in zip(zeros, found, strict=True)]

    def evaluation(self, loss: Tensor, factor: float, manner: Manner) -> Evaluation:
        """Return the evaluation of the loss, whose backward pass is done with a factor."""
        state = self.calls[0].conditions.randomness
        found = Evaluation(self.compute, loss, state, buffers_before(self.calls), manner)
        found.weight, found.is_scaled, found.is_noted = factor, True, True
        return found


def head_of(loss: Tensor, parameters: Sequence[Tensor]) -> Head | str | None:
    """Return how a loss depends on watched outputs; a reason if it cannot be told, None without any."""
    edges, others = marks_below(loss)
    if not edges:
        return None
    for node, number in edges:
        mark = marks_on(node)[number]
        problem = mark.call.why_not()
        if problem is None and (mark.value is None or mark.value._version != mark.version):
            problem = f"the output of {type(mark.call.module).__name__} was changed in place"
        if problem is not None:
            return problem
    ours = {id(one) for one in parameters}
    if any(id(one) in ours for one in others):
        return "it depends on parameters by other ways than outputs of what is watched, as penalties do"
    return Head(loss, edges)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    kind = torch.promote_types(torch.promote_types(one.dtype, other.dtype), torch.float32)
    return (one.to(kind) * other.to(kind)).sum()
