"""Numbers that squares fit into.

Curvature is made of squares, and the square of a number can be too large, or too small, for a type that
holds the number itself. Half precision is therefore always carried as float32. Where that is not enough
(weights above 1e19, say, whose squares are infinite, and 0 times infinity is no number), the walk is
repeated with `wide` numbers, float64 for all types, in which every operation's result is brought back
into a range that the next operation cannot leave.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["HALF", "bands", "fitted", "in_full", "in_range", "largest", "sound", "wide_type"]

HALF = (torch.float16, torch.bfloat16)


def wide_type(device: torch.device) -> torch.dtype:
    """Return the type with the largest range that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def in_full(tensor: Tensor, wide: torch.dtype | None = None) -> Tensor:
    """Return half precision as float32: squares would be lost in it; or all numbers as `wide`."""
    if wide is not None and tensor.is_floating_point():
        return tensor.to(wide)
    return tensor.float() if tensor.dtype in HALF else tensor


def in_range(tensor: Tensor, signed: bool) -> Tensor:
    """Return finite numbers that may be multiplied by the squares of float32's, and summed.

    What is not a number is 0 times infinity here, mostly the second derivative of an operation at a
    point that is masked out: there is no curvature.
    """
    bound = torch.finfo(tensor.dtype).max ** (2 / 3)
    return _on_entries(tensor, lambda one: one.nan_to_num(0.0).clamp(-bound if signed else 0.0, bound))


def fitted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return wide numbers in the type that stands for another one; its largest number is the most."""
    full = torch.float32 if dtype in HALF else dtype
    return _on_entries(tensor, lambda one: one.clamp(max=torch.finfo(full).max)).to(full)


def sound(tensors: Iterable[Tensor]) -> bool:
    """Whether all entries are finite, and none is negative."""
    entries = [one.coalesce().values() if one.is_sparse else one for one in tensors]
    bounds = [bound for one in entries if one.numel() > 0 for bound in one.aminmax()]
    if not bounds:
        return True
    together = torch.stack([bound.to(bounds[0].device) for bound in bounds])  # one answer to wait for
    return bool(((together >= 0) & (together < torch.inf)).all())


def largest(tensors: Iterable[Tensor | None]) -> Tensor:
    """Return the largest size of any entry; 1 if all are zero, or if there are none."""
    given = [one for one in tensors if one is not None]
    sizes = [one.abs().amax() for one in given if one.numel() > 0]
    found = torch.stack(sizes).amax() if sizes else given[0].new_zeros(())
    return torch.where(found > 0, found, torch.ones_like(found))


def bands(tensors: Sequence[Tensor | None], dtype: torch.dtype) -> Iterator[list[Tensor | None]]:
    """Split into tensors with this sum, in each of which a type can hold all entries at one scale."""
    left = list(tensors)
    while True:
        least = largest(left) * torch.finfo(dtype).tiny ** 0.8
        small = [None if one is None else torch.where(one.abs() < least, one, 0) for one in left]
        yield [
            one if one is None or rest is None else one - rest
            for one, rest in zip(left, small, strict=True)
        ]
        if not any(one is not None and one.any() for one in small):
            return
        left = small


def _on_entries(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    if not tensor.is_sparse:
        return function(tensor)
    tensor = tensor.coalesce()
    return torch.sparse_coo_tensor(
        tensor.indices(),
        function(tensor.values()),
        tensor.shape,
        is_coalesced=True,
        check_invariants=False,  # which the indices of another tensor have, and unsaid it warns
    )
