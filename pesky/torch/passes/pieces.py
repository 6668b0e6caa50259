"""Large tensors, a piece at a time: what is computed on the way then takes no memory to speak of."""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["pieces_of", "sum_of_squares"]

_ENTRIES = 32_768  # few enough for torch to add them up in one thread, whatever their number


def pieces_of(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors of one shape alike, in the order of their entries; what changes in a piece changes."""
    if all(one.is_contiguous() for one in tensors):
        tensors = tuple(one.view(-1) for one in tensors)
    row = max(1, tensors[0].numel() // max(1, len(tensors[0])))
    return zip(*(torch.split(one, max(1, _ENTRIES // row)) for one in tensors), strict=True)


def sum_of_squares(values: Tensor, factor: float = 1.0, shift: float = 0.0) -> float:
    """Return the sum of (factor value + shift)^2, whose last digit depends on no number of threads."""
    total = 0.0
    for (piece,) in pieces_of(values.detach()):
        total += float((piece.double() * factor).add_(shift).square_().sum())
    return total
