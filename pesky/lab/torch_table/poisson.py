"""A partial differential equation, solved by a network whose derivatives are in its loss."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from pesky.lab.torch_models import mlp
from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, in_eval_mode
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "poisson"]

_JUDGED = 2015  # seed of the points on the edge that judge
_POINTS = 64  # inside, and on the edge
_EDGE_WEIGHT = 10.0


def poisson(seed: int, folder: Path | None) -> Instance:
    """Solve Poisson's equation on the unit square; the test number is the root mean square error."""
    side = torch.linspace(0, 1, 21)
    inside = torch.cartesian_prod(side, side)
    judged = (inside, _edge(generator(_JUDGED), len(inside)))

    def batch(step: int) -> Batch:
        random = generator(seed, step)
        return torch.rand(_POINTS, 2, generator=random), _edge(random, _POINTS)

    def evaluate(trained: nn.Module) -> Measured:
        with in_eval_mode(trained):
            wrong = trained(inside).squeeze(1) - _solution(inside)
            with torch.enable_grad():
                loss = float(_residual(trained, judged).detach())
            return Measured(loss, float(wrong.square().mean().sqrt()))

    return Instance(mlp(2, 32, 32, 1), batch, _residual, evaluate)


def _edge(random: torch.Generator, points: int) -> Tensor:
    """Return points on the four sides."""
    places = torch.rand(points, 2, generator=random)
    which = torch.arange(points)
    places[which, which % 2] = (which // 2 % 2).float()
    return places


def _solution(places: Tensor) -> Tensor:
    return (math.pi * places).sin().prod(1)


def _residual(model: nn.Module, batch: Batch) -> Tensor:
    inside, edge = batch
    places = inside.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(model(places).sum(), places, create_graph=True)
    curvature = torch.zeros(len(places))
    for axis in range(2):
        (second,) = torch.autograd.grad(slopes[:, axis].sum(), places, create_graph=True)
        curvature = curvature + second[:, axis]
    wanted = -2 * math.pi**2 * _solution(inside)
    at_edge: Tensor = model(edge)
    return (curvature - wanted).square().mean() + _EDGE_WEIGHT * at_edge.square().mean()


TASKS = (Task.made("pinn", "MLP [2, 32, 32, 1] solves Poisson's equation", 2000, "error", poisson),)
