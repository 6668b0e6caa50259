"""How large steps are: whether all entries stay finite can then be known without a look at them."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Extent", "are_within", "extents_of", "set_finite", "step_within"]

_NEAR = 0.5  # of the largest number of a type: what stays below need not be looked at entry by entry


class Extent(NamedTuple):
    """How large a direction is."""

    largest: float  # of its entries' sizes
    square: float  # sum of their squares
    reach: float  # largest size of the parameters' entries, before the step

    def times(self, factor: float) -> "Extent":
        """Return that of a multiple of the direction."""
        return Extent(abs(factor) * self.largest, factor * factor * self.square, self.reach)

    def joined(self, share: float) -> "Extent":
        """Return that of the direction and a share of the parameters; the square is no longer known."""
        return Extent(self.largest + share * self.reach, inf, self.reach)


def extents_of(numbers: Mapping[str, Sequence[float]]) -> list[Extent]:
    """Return extents from largest entries, lengths where they are known, and reaches."""
    largest, reach = numbers["largest"], numbers["reach"]
    squares = [length * length for length in numbers["lengths"]] or [inf] * len(largest)
    return [Extent(*one) for one in zip(largest, squares, reach, strict=True)]


def are_within(kind: torch.dtype, extents: Sequence[Extent] | None, distances: Sequence[float]) -> bool:
    """Whether steps are known to end far from the largest number of a type."""
    if extents is None:
        return False
    limit = _NEAR * torch.finfo(kind).max
    ends = zip(extents, distances, strict=True)
    return all(one.reach + abs(distance) * one.largest < limit for one, distance in ends)


@torch.no_grad()
def step_within(
    thetas: list[Tensor],
    wide: list[Tensor],
    values: list[Tensor],
    distances: list[float],
    extents: list[Extent] | None,
) -> bool:
    """Move parameters by -distance times a value; return whether entries stay.

    `wide` are the parameters in the type of the values, be it themselves. Only where some entries may
    not be finite, they are looked at, tensor by tensor.
    """
    if are_within(thetas[0].dtype, extents, distances):
        torch._foreach_add_(wide, torch._foreach_mul(values, [-one for one in distances]))
        if wide[0] is not thetas[0]:
            torch._foreach_copy_(thetas, wide)
        return False
    steps = zip(thetas, wide, values, distances, strict=True)
    held = [set_finite(one, start - by * value) for one, start, value, by in steps]
    return any(held)


@torch.no_grad()
def set_finite(parameter: Tensor, value: Tensor) -> bool:
    """Set a parameter where the value is finite in its type; return whether entries stay."""
    value = value.to(parameter.dtype)
    finite = value.isfinite()
    if bool(finite.all()):
        parameter.copy_(value)
        return False
    parameter.copy_(torch.where(finite, value, parameter))
    return True
