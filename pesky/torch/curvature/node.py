"""A node of autograd's graph, as the walk and the rules see it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pesky.torch.curvature.precision import HALF, bands, in_full, in_range, largest

__all__ = ["Edge", "Node", "Tensors", "UnsupportedGraph", "add", "signed"]

Tensors = Sequence[Tensor | None]  # one for each output of a node, or for each of its inputs

_LEAF = "AccumulateGrad"
# What these have saved may be used once (donated buffers), or their backward runs another backward,
# to parameters that the graph does not show.
_UNCALLABLE = ("CompiledFunctionBackward", "CheckpointFunctionBackward")
# Pass on what they get; what they do besides is not for other passes than backward passes.
_MARKS = ("RegisterPostBackwardFunctionBackward",)


class UnsupportedGraph(RuntimeError):  # noqa: N818 (says what the graph is)
    """The graph has a node through which no curvature can be passed."""


class Edge(NamedTuple):
    """Where an input of a node comes from: a node, and which of its outputs."""

    function: Any
    output: int

    @property
    def is_leaf(self) -> bool:
        """Whether the input is a parameter itself."""
        return _name(self.function) == _LEAF


class Node:
    """A recorded operation. Its outputs are what arrives in a backward pass, its inputs what leaves."""

    def __init__(
        self, function: Any, generator: torch.Generator, wide: torch.dtype | None = None
    ) -> None:
        """Wrap one of autograd's functions; the generator is for what is estimated by random signs.

        If `wide` is given, all numbers are carried in that type and kept in range.
        """
        self.function = function
        self.generator = generator
        self.wide = wide
        self.name = _name(function)
        if self.name in _UNCALLABLE:
            raise UnsupportedGraph(
                f"{self.name} cannot be called outside of its own backward pass; "
                "compute the curvature by finite differences instead"
            )
        if any(output.dtype.is_complex for output in function._input_metadata):
            raise UnsupportedGraph(
                f"{self.name} has complex results, for which squares are no curvature; "
                "compute the curvature by finite differences instead"
            )
        self.edges = tuple(
            None if source is None else Edge(source, output)
            for source, output in function.next_functions
        )
        self.learns = len(self.edges) - self.edges.count(None) > 1  # no operation with constants only

    @property
    def is_leaf(self) -> bool:
        """Whether it stands for a parameter."""
        return self.name == _LEAF

    @property
    def kind(self) -> str:
        """Return the operation's name without the ending that tells overloads apart: "Mul"."""
        return self.name.rstrip("0123456789").removesuffix("Backward")

    def saved(self, name: str) -> Any:
        """Return what the forward pass kept under this name, in full precision."""
        value = getattr(self.function, f"_saved_{name}")
        return self.in_full(value) if isinstance(value, Tensor) else value

    def in_full(self, tensor: Tensor) -> Tensor:
        """Return half precision as float32, or any precision as `wide`."""
        return in_full(tensor, self.wide)

    def saved_dimension(self) -> int:
        """Return the dimension along which the operation went."""
        return _unsigned_undone(self.function._saved_dim)

    def saved_dimensions(self) -> tuple[int, ...]:
        """Return the dimensions along which the operation went."""
        return tuple(_unsigned_undone(one) for one in self.function._saved_dim)

    def signs_like(self, tensor: Tensor) -> Tensor:
        """Return independent random signs."""
        return torch.empty_like(tensor).bernoulli_(generator=self.generator).mul_(2).sub_(1)

    def backward(self, outputs: Tensors) -> list[Tensor | None]:
        """Apply the transposed Jacobian: one step of an ordinary backward pass.

        A broadcast input is not summed to its own shape yet: see `summed`.
        """
        if self.name in _MARKS:
            return list(outputs)
        total: list[Tensor | None] = [None] * len(self.edges)
        for band in [outputs] if self.wide is None else bands(outputs, self._dtype):
            inputs, scale = self.scaled_backward(band)
            if scale is not None:
                inputs = [None if one is None else one * scale for one in inputs]
            total = [add(one, other) for one, other in zip(total, inputs, strict=True)]
        return total

    def scaled_backward(self, outputs: Tensors) -> tuple[list[Tensor | None], Tensor | None]:
        """Return what `backward` does divided by a number, and that number; None stands for 1."""
        scale = None
        if self._dtype in HALF or self.wide is not None:
            # sqrt(h) and h may be too small, or too large, for the operation's own type.
            scale = largest(outputs)
            outputs = [None if one is None else (one / scale).to(self._dtype) for one in outputs]
        if isinstance(self.function, torch.autograd.function.BackwardCFunction):
            given = [
                torch.zeros(self._shape(number), dtype=self._dtype) if one is None else one
                for number, one in enumerate(outputs)
            ]
            found: Any = self.function.apply(*given)  # type: ignore[no-untyped-call]
        else:
            found = self.function(*outputs)
        inputs = [found] if isinstance(found, Tensor) or found is None else list(found)
        inputs += [None] * (len(self.edges) - len(inputs))
        return [None if one is None else self.in_full(one) for one in inputs], scale

    def _shape(self, output: int) -> torch.Size:
        return torch.Size(self.function._input_metadata[output].shape)

    @property
    def _dtype(self) -> torch.dtype:
        return self.function._input_metadata[0].dtype  # type: ignore[no-any-return]

    def summed(self, inputs: Tensors, signed: bool = True) -> list[Tensor | None]:
        """Sum what belongs to broadcast inputs to their shapes; drop what nobody needs.

        Wide numbers are brought back into range, in which those without a sign are not negative.
        """
        result: list[Tensor | None] = []
        for edge, one in zip(self.edges, inputs, strict=True):
            if edge is None or one is None:
                result.append(None)
                continue
            one = self.in_full(one)
            metadata = edge.function._input_metadata
            shape = torch.Size(metadata[edge.output].shape) if len(metadata) > edge.output else one.shape
            one = one if one.shape == shape else one.sum_to_size(shape)
            result.append(one if self.wide is None else in_range(one, signed))
        return result


def _name(function: Any) -> str:
    return str(function.name()).rsplit("::", 1)[-1]


def add(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add, where None is zero."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def signed(tensor: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Split into what is above zero and what is below, both as non-negative numbers."""
    if tensor is None:
        return None, None
    return tensor.clamp(min=0), (-tensor).clamp(min=0)


def _unsigned_undone(dimension: int) -> int:
    """Return a dimension's number; autograd keeps negative ones as unsigned 64-bit numbers."""
    return dimension - 2**64 if dimension >= 2**63 else dimension
