"""Where curvature comes from: bbprop, or something to fall back on.

Every source returns tensors for the parameters that it reached, whose absolute value counts: those of
several passes are summed up first, with the same random signs. What they see is the loss as it is given,
scale included: curvature is proportional to it, as the gradient is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pesky.errors import InputError
from pesky.torch.passes.pieces import pieces_of, sum_of_squares
from pesky.torch.processes import sums_over
from pesky.torch.shards import block_of, local_of, spread_of

__all__ = ["Callback", "GradientsAfter", "Values", "call", "finite_difference", "hutchinson"]

Values = dict[Tensor, Tensor]
Callback = Callable[[Tensor, list[Tensor]], Iterable[Tensor | None]]
GradientsAfter = Callable[[list[Tensor], Callable[[], None]], list[Tensor | None]]

_RELATIVE_STEP = 1e-3  # of a typical parameter: the gradient changes by far more than its rounding


def call(source: Callback, loss: Tensor, parameters: list[Tensor]) -> Values:
    """Ask the user's own function."""
    found = list(source(loss, parameters))
    if len(found) != len(parameters):
        raise InputError(
            f"curvature must return one tensor (or None) a parameter; "
            f"got {len(found)} for {len(parameters)} parameters"
        )
    values = {}
    for parameter, value in zip(parameters, found, strict=True):
        if value is None:
            continue
        if value.shape != parameter.shape:
            raise InputError(
                f"curvature must return tensors of the parameters' shapes; "
                f"got {tuple(value.shape)} for {tuple(parameter.shape)}"
            )
        values[parameter] = value.detach().abs()
    return values


def hutchinson(loss: Tensor, parameters: Sequence[Tensor], seed: int) -> Values:
    """z * Hz for random signs z: one sample of the Hessian's diagonal, by a second backward pass.

    Its square is one of the squared lengths of the Hessian's rows. The signs have a generator of their
    own, so the user's random numbers stay as they are, and a training run that goes on from a checkpoint
    meets the same ones. Parameters in which the loss is linear have none.
    """
    generator = np.random.default_rng(seed)
    slopes = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    reached = [
        (parameter, slope)
        for parameter, slope in zip(parameters, slopes, strict=True)
        if slope is not None and slope.requires_grad
    ]
    flat = {
        parameter: torch.zeros_like(parameter)
        for parameter, slope in zip(parameters, slopes, strict=True)
        if slope is not None and not slope.requires_grad
    }
    if not reached:
        return flat
    signs = [_signs(parameter, generator) for parameter, _ in reached]
    products = torch.autograd.grad(
        [slope for _, slope in reached],
        [parameter for parameter, _ in reached],
        grad_outputs=signs,
        retain_graph=True,
        allow_unused=True,
    )
    return flat | {
        parameter: torch.zeros_like(parameter) if product is None else (product * sign).detach()
        for (parameter, _), sign, product in zip(reached, signs, products, strict=True)
    }


def _signs(like: Tensor, generator: np.random.Generator) -> Tensor:
    """Return random signs of the shape and kind of a tensor, each made of one random bit."""
    count = like.numel()
    drawn = np.frombuffer(generator.bytes(-(-count // 8)), np.uint8)
    return _signs_from(torch.from_numpy(np.unpackbits(drawn, count=count)), like).view(like.shape)


def _signs_from(bits: Tensor, like: Tensor) -> Tensor:
    return bits.to(like.device, like.dtype).mul_(2).sub_(1)


def finite_difference(
    gradients_after: GradientsAfter, gradients: Values, seed: int, group: Any = None
) -> Values:
    """How the same batch's gradient changes over a small step, divided by the step as it was rounded.

    `gradients_after` takes parameters and a function that moves them; it returns the gradients there,
    and takes the parameters back. The step goes equally far along every axis, up or down by chance: as
    with Hutchinson's products, other parameters then add noise but no bias. Along the gradient (Schaul
    and LeCun, 2013) they add up, and rates came out ten times smaller. Signs are drawn twice rather than
    kept: beyond what is returned, there is memory for one tensor only. The processes of a `group` each
    have a part of the parameters, or a copy.
    """
    parameters = list(gradients)
    typical = _root_mean_square(parameters, group)
    coarsest = max((torch.finfo(one.dtype).eps for one in parameters), default=0.0)
    relative = max(_RELATIVE_STEP, coarsest**0.5)  # half precision would round shorter ones away
    length = relative * (typical if typical > 0 else 1.0)

    def move() -> None:
        generator = np.random.default_rng(seed)
        for parameter in parameters:
            for signs, piece in _signed(parameter, generator):
                piece.add_(signs, alpha=length)

    changed = gradients_after(parameters, move)
    generator = np.random.default_rng(seed)
    values = {}
    for k, (parameter, here) in enumerate(gradients.items()):
        there, changed[k] = changed[k], None
        difference = (-here if there is None else there - here).to_dense()
        for signs, start, piece in _signed(parameter, generator, difference):
            piece.div_(_nonzero(signs.mul_(length).add_(start).sub_(start)))
        values[parameter] = difference
    return values


def _signed(parameter: Tensor, generator: np.random.Generator, *others: Tensor) -> Iterator[Any]:
    """Cut a parameter and tensors like it into pieces, and yield random signs with each.

    Signs belong to entries of the whole tensor: what a process has of it does not change them.
    """
    block = block_of(parameter)
    if block is None:
        for of_parameter, *pieces in pieces_of(local_of(parameter).detach(), *others):
            yield _signs(of_parameter, generator), of_parameter, *pieces
        return
    here, (rows, *columns) = local_of(parameter), block
    drawn = np.frombuffer(generator.bytes(-(-parameter.numel() // 8)), np.uint8)
    first, last = (row * (parameter.numel() // len(parameter)) for row in (rows.start, rows.stop))
    bits = np.unpackbits(drawn[first // 8 : -(-last // 8)])[first % 8 :][: last - first]
    bits = bits.reshape(rows.stop - rows.start, *parameter.shape[1:])[:, *columns]
    for of_piece, *pieces in pieces_of(torch.from_numpy(np.ascontiguousarray(bits)), here, *others):
        yield _signs_from(of_piece, here), *pieces


def _root_mean_square(parameters: Sequence[Tensor], group: Any) -> float:
    here = sum(sum_of_squares(local_of(one)) * spread_of(one, group).share for one in parameters)
    (total,) = sums_over([float(here)], group)
    return float((total / max(1, sum(parameter.numel() for parameter in parameters))) ** 0.5)


def _nonzero(step: Tensor) -> Tensor:
    return step + (step == 0)
