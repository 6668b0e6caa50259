"""Where curvature comes from: bbprop, or something to fall back on.

Every source returns tensors for the parameters that it reached, whose absolute value counts: those of
several passes are summed up first, with the same random signs. What they see is the loss as it is given,
scale included: curvature is proportional to it, as the gradient is.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from pesky.errors import InputError

__all__ = ["Callback", "GradientsAfter", "Values", "call", "finite_difference", "hutchinson"]

Values = dict[Tensor, Tensor]
Callback = Callable[[Tensor, list[Tensor]], Iterable[Tensor | None]]
GradientsAfter = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]

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
    generator = torch.Generator().manual_seed(seed)
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


def _signs(parameter: Tensor, generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
    return signs.to(parameter.device, parameter.dtype)


def finite_difference(gradients_after: GradientsAfter, gradients: Values, seed: int) -> Values:
    """How the same batch's gradient changes over a small step, divided by the step.

    `gradients_after` takes parameters and a step of each, and returns the steps as they were taken and
    the gradients there. The step goes equally far along every axis, up or down by chance: as with
    Hutchinson's products, other parameters then add noise but no bias. Along the gradient (Schaul and
    LeCun, 2013) they add up, and rates came out ten times smaller.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = list(gradients)
    typical = _root_mean_square(parameters)
    coarsest = max((torch.finfo(one.dtype).eps for one in parameters), default=0.0)
    relative = max(_RELATIVE_STEP, coarsest**0.5)  # half precision would round shorter ones away
    length = relative * (typical if typical > 0 else 1.0)
    steps = [length * _signs(parameter, generator) for parameter in parameters]
    taken, changed = gradients_after(parameters, steps)
    return {
        parameter: (there - here).to_dense() / _nonzero(step)
        for (parameter, here), there, step in zip(gradients.items(), changed, taken, strict=True)
    }


def _root_mean_square(parameters: Iterable[Tensor]) -> float:
    powers = [parameter.detach().double().square().sum().item() for parameter in parameters]
    return float((sum(powers) / max(1, sum(parameter.numel() for parameter in parameters))) ** 0.5)


def _nonzero(step: Tensor) -> Tensor:
    return step + (step == 0)
