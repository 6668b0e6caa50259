"""Slow and obvious: squared Jacobians of stages, each from torch.func, summed over paths."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import jacrev

from pesky.torch.curvature import bbprop


class Stage(NamedTuple):
    """One operation of a graph: the name of its result, the operation, the names of its arguments."""

    result: str
    operation: Callable[..., Tensor]
    arguments: Sequence[str]


def run(stages: Sequence[Stage], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    values = dict(inputs)
    for stage in stages:
        values[stage.result] = stage.operation(*(values[name] for name in stage.arguments))
    return values


def squared_jacobians(
    stages: Sequence[Stage], inputs: Mapping[str, Tensor], curvature: Tensor
) -> dict[str, Tensor]:
    """Take the curvature of the last stage's result to every input."""
    values = run(stages, {name: value.detach() for name, value in inputs.items()})
    h = {name: torch.zeros_like(value) for name, value in values.items()}
    h[stages[-1].result] = curvature
    for stage in reversed(stages):
        arguments = [values[name] for name in stage.arguments]
        for place, name in enumerate(stage.arguments):
            if not values[name].is_floating_point():
                continue
            jacobian = jacrev(stage.operation, argnums=place)(*arguments)
            size = values[stage.result].numel()
            squares = jacobian.reshape(size, -1).square()
            h[name] += (h[stage.result].reshape(1, size) @ squares).reshape(values[name].shape)
    return {name: h[name] for name in inputs}


def mean_curvatures(
    loss: Tensor, parameters: list[Tensor], probes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean of bbprop over each parameter, and that of the Hessian's diagonal (Hutchinson)."""
    ours = np.array([one.mean().item() for one in bbprop(loss, parameters)])
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    exact = np.zeros(len(parameters))
    for _ in range(probes):
        signs = [torch.randint_like(one, 2) * 2 - 1 for one in parameters]
        products = torch.autograd.grad(gradients, parameters, grad_outputs=signs, retain_graph=True)
        exact += [
            (sign * product).mean().item() / probes
            for sign, product in zip(signs, products, strict=True)
        ]
    return ours, np.abs(exact)
