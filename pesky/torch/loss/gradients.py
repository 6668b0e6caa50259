"""What backward passes left in `.grad`, and what a loop does to it before the step: clipping, mostly.

A step's length comes from how the loss changes along it, and that goes with the loss's own slope. So
gradients are looked at when the backward pass has ended, and again in the step.
"""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

__all__ = ["Left"]

_SAME = 1e-3  # of a norm: rounding in half precision
_OTHER = 0.01  # of all gradients together: what else has been differentiated


class Left:
    """The norms of gradients, and which versions of which tensors they are of."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """Look at gradients."""
        self._gradients = {one: _version_of(one) for one in parameters if one.grad is not None}
        self._norms = _norms(list(self._gradients))

    def factor(self) -> float | None:
        """Return what all gradients were multiplied with since; None if that is no single number."""
        now = [one for one in self._gradients if one.grad is not None]
        if all(_version_of(one) == version for one, version in self._gradients.items()):
            return 1.0
        before, after = self._norms, _norms(now)
        total = sum(before[one] for one in now)
        factor = sum(after.values()) / total if total > 0 else 1.0
        is_uniform = all(
            abs(after[one] - factor * before[one]) <= _SAME * factor * before[one] for one in now
        )
        return factor if is_uniform and factor > 0 and isfinite(factor) else None

    def gradients(self) -> dict[Tensor, Tensor] | None:
        """Return the gradients as they were; None if that cannot be told."""
        factor = self.factor()
        there = {one: one.grad for one in self._gradients if one.grad is not None}
        if factor is None or len(there) < len(self._gradients):
            return None
        return there if factor == 1 else {one: value / factor for one, value in there.items()}

    def is_all_of(self, gradients: dict[Tensor, Tensor]) -> bool:
        """Whether there is nothing in them but these gradients, which were computed again."""
        others = _norms_of(list(gradients), list(gradients.values()))
        gap = sum((norm - others.get(one, 0.0)) ** 2 for one, norm in self._norms.items())
        power = sum(norm**2 for norm in self._norms.values())
        return not gap > _OTHER**2 * power


def _version_of(parameter: Tensor) -> tuple[int, int]:
    gradient = parameter.grad
    return id(gradient), -1 if gradient is None else gradient._version


def _norms(parameters: list[Tensor]) -> dict[Tensor, float]:
    return _norms_of(parameters, [one.grad for one in parameters if one.grad is not None])


def _norms_of(parameters: list[Tensor], gradients: list[Tensor]) -> dict[Tensor, float]:
    if not gradients:
        return {}
    dense = [one.to_dense() if one.is_sparse else one for one in gradients]
    norms = torch._foreach_norm([one.detach() for one in dense])
    return dict(zip(parameters, [float(one) for one in norms], strict=True))
