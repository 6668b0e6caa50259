"""bbprop: the diagonal curvature of a loss, by one more pass over the graph that autograd recorded."""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from pesky.errors import InputError
from pesky.torch.curvature.node import Edge, UnsupportedGraph
from pesky.torch.curvature.precision import in_full, sound, wide_type
from pesky.torch.curvature.walk import Mode, Walk
from pesky.torch.settings import check_choice

__all__ = ["Curvature", "Mode", "UnsupportedGraph", "bbprop", "curvature_of"]


@dataclass(frozen=True)
class Curvature:
    """What one pass found."""

    values: dict[Tensor, Tensor]  # for each leaf that it reached, finite and non-negative
    curved: bool  # False: the loss has no curvature of its own, as L1 and hinge losses
    probed: frozenset[str]  # operations that were estimated by random signs


def bbprop(
    loss: Tensor,
    params: Sequence[Tensor],
    *,
    mode: Mode = "gauss-newton",
    strict: bool = False,
) -> tuple[Tensor, ...]:
    """Return the diagonal curvature of a scalar loss with respect to each parameter.

    Call it before `loss.backward()`, which frees the graph. Parameters that the loss does not depend
    on have curvature zero. Wherever the gradient is finite, curvature is finite and not negative; if it
    is too large for its type, it is the largest number of that type.

    `mode="full"` adds the second derivatives of hidden units, as LeCun's original; the absolute value
    is then taken at the end. `strict` refuses operations without a rule, which are otherwise estimated
    by random signs, with a warning.

    >>> layer = torch.nn.Linear(2, 1, bias=False)
    >>> loss = torch.nn.functional.mse_loss(layer(torch.tensor([[1.0, 3.0]])), torch.zeros(1, 1))
    >>> bbprop(loss, [layer.weight])
    (tensor([[ 2., 18.]]),)
    """
    check_choice("mode", mode, get_args(Mode))
    params = list(params)
    found = curvature_of(loss, params, mode=mode, strict=strict).values
    return tuple(
        found[one] if one in found else in_full(torch.zeros_like(one, requires_grad=False))
        for one in params
    )


def curvature_of(
    loss: Tensor,
    params: Iterable[Tensor],
    *,
    upstream: Tensor | None = None,
    mode: Mode = "gauss-newton",
    strict: bool = False,
) -> Curvature:
    """Do the pass; `upstream` is the gradient that arrives at `loss` if more is computed from it."""
    if loss.numel() != 1:
        raise InputError(
            f"loss must be a single number, not of shape {tuple(loss.shape)}; take its mean"
        )
    if loss.grad_fn is None:
        raise InputError("loss does not depend on any parameter; compute it with gradients enabled")
    if loss.is_complex():
        raise InputError(f"loss must be real, not {loss.dtype}")
    params = list(params)
    slope = torch.ones_like(loss) if upstream is None else upstream.detach()

    def walked(wide: torch.dtype | None) -> Walk:
        generator = torch.Generator(loss.device).manual_seed(_seed(loss))
        walk = Walk(mode, strict, generator, wide)
        walk.run(Edge(loss.grad_fn, loss.output_nr), in_full(slope, wide), params)
        return walk

    with torch.no_grad():
        walk = walked(None)
        if not sound(walk.values.values()):
            walk = walked(wide_type(loss.device))
    return Curvature(walk.values, walk.curved, frozenset(walk.probed))


def _seed(loss: Tensor) -> int:
    """Return a seed that differs between batches and repeats with them.

    So a repeated run repeats its signs, and the user's own random numbers stay as they are.
    """
    return zlib.crc32(struct.pack("<d", float(loss.detach())))
