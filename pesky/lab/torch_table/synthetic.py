"""Tasks whose optimum is known: both numbers are the expected loss above it."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "half_square", "quadratic", "regression"]

_PROBLEM = 2013  # seed of the problems themselves, which are the same for all seeds of a run

_INPUTS = 50
_NARROWEST = -2.0  # exponent of the smallest scale of an input; the largest is 1
_NOISE = 0.1  # deviation of the targets
_SAMPLES = 16  # in a batch of the regression

_DIMENSIONS = 100
_STEEP = 10  # of them
_CENTRES = 8  # in a batch of the quadratic


def regression(seed: int, folder: Path | None) -> Instance:
    """Linear regression on rotated inputs of scales 1 to 0.01, with noise; no folder is needed."""
    problem = generator(_PROBLEM)
    scales = torch.logspace(0, _NARROWEST, _INPUTS)
    mixing = scales[:, None] * _rotation(_INPUTS, problem)
    weights = torch.randn(_INPUTS, generator=problem)
    covariance = mixing.double().T @ mixing.double()

    def batch(step: int) -> Batch:
        numbers = torch.randn(_SAMPLES, _INPUTS + 1, generator=generator(seed, step))
        inputs = numbers[:, :-1] @ mixing
        return inputs, inputs @ weights + _NOISE * numbers[:, -1]

    def evaluate(trained: nn.Module) -> Measured:
        away = next(trained.parameters()).detach().flatten().double() - weights.double()
        return _known(away, covariance)

    return Instance(nn.Linear(_INPUTS, 1, bias=False), batch, half_square, evaluate)


def quadratic(seed: int, folder: Path | None) -> Instance:
    """A rotated bowl of which each sample has another centre; no folder is needed."""
    problem = generator(_PROBLEM)
    flat = torch.rand(_DIMENSIONS - _STEEP, generator=problem)
    steep = 30 + 30 * torch.rand(_STEEP, generator=problem)
    axes = _rotation(_DIMENSIONS, problem)
    hessian = axes.T @ (torch.cat((flat, steep))[:, None] * axes)

    def batch(step: int) -> Batch:
        return torch.randn(_CENTRES, _DIMENSIONS, generator=generator(seed, step)), hessian

    def evaluate(trained: nn.Module) -> Measured:
        return _known(next(trained.parameters()).detach().double(), hessian.double())

    return Instance(_Point(_DIMENSIONS), batch, _distance, evaluate)


class _Point(nn.Module):
    """Parameters without a network; from `centres` it returns the ways to itself."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(dimensions))

    def forward(self, centres: Tensor) -> Tensor:
        return self.place - centres


def _rotation(size: int, random: torch.Generator) -> Tensor:
    rotation: Tensor = torch.linalg.qr(torch.randn(size, size, generator=random))[0]
    return rotation


def half_square(model: nn.Module, batch: Batch) -> Tensor:
    """Return half the mean squared distance of the only output from its target."""
    inputs, targets = batch
    return F.mse_loss(model(inputs).squeeze(1), targets) / 2


def _distance(model: nn.Module, batch: Batch) -> Tensor:
    centres, hessian = batch
    ways: Tensor = model(centres)
    return ((ways @ hessian) * ways).sum(1).mean() / 2


def _known(away: Tensor, hessian: Tensor) -> Measured:
    excess = float(away @ hessian @ away) / 2
    return Measured(excess, excess)


_STEPS, _EXCESS = 2000, "excess loss"

TASKS = (
    Task.made("regression", "Ill-conditioned linear regression", _STEPS, _EXCESS, regression),
    Task.made("quadratic", "Rotated noisy quadratic", _STEPS, _EXCESS, quadratic),
)
