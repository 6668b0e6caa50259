"""Tasks that learn a density: a variational autoencoder and a normalising flow."""

import math
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from pesky.lab.torch_models import relu_mlp
from pesky.lab.torch_table import images
from pesky.lab.torch_table.instance import Batch, Instance, generator, losses_of
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "drawing_digits", "flowing"]

_JUDGED = 2000  # samples that a loss is measured on
_FIXED = 2016  # seed of the random numbers that judge

_CODE = 8
_VARIANCE = 0.1  # of a pixel around its drawing


class _Variational(nn.Module):
    """An encoder to means and log variances, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = relu_mlp(images.SIDE * images.SIDE, 128, 2 * _CODE)
        self.decoder = relu_mlp(_CODE, 128, images.SIDE * images.SIDE)


def drawing_digits(seed: int, folder: Path | None) -> Instance:
    """Minus the evidence's lower bound, per image; the noise of the codes comes with the batch."""
    train, _, test, _ = images.mnist(folder)

    def batch(step: int) -> Batch:
        random = generator(seed, step)
        chosen = torch.randint(len(train), (64,), generator=random)
        return train[chosen], torch.randn(64, _CODE, generator=random)

    noise = torch.randn(_JUDGED, _CODE, generator=generator(_FIXED))
    judged, held_out = ((part[:_JUDGED], noise) for part in (train, test))
    return Instance(_Variational(), batch, _bound, partial(losses_of, _bound, judged, held_out))


def _bound(model: nn.Module, batch: Batch) -> Tensor:
    inputs, noise = batch
    mean, log_variance = model.get_submodule("encoder")(inputs).chunk(2, 1)
    drawn = model.get_submodule("decoder")(mean + noise * (log_variance / 2).exp())
    squares = (drawn - inputs).square().sum(1) / (2 * _VARIANCE)
    divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum(1) / 2
    bound: Tensor = (squares + divergence).mean()
    return bound


_COUPLINGS = 6


class _Flow(nn.Module):
    """Affine couplings of two coordinates, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(relu_mlp(1, 32, 32, 2) for _ in range(_COUPLINGS))

    def forward(self, points: Tensor) -> Tensor:
        """Return each point's log density."""
        kept, moved = points[:, :1], points[:, 1:]
        growth = torch.zeros(len(points), 1)
        for coupling in self.couplings:
            log_scale, shift = coupling(kept).chunk(2, 1)
            log_scale = log_scale.tanh()
            kept, moved = moved * log_scale.exp() + shift, kept
            growth = growth + log_scale
        squares = (kept.square() + moved.square()) / 2
        return (growth - squares).squeeze(1) - math.log(2 * math.pi)


def flowing(seed: int, folder: Path | None) -> Instance:
    """Minus the log density of points on two half moons; no folder is needed."""
    train, test = (_moons(_JUDGED, generator(_FIXED, number)) for number in range(2))
    return Instance(
        _Flow(),
        lambda step: _moons(128, generator(seed, step)),
        _surprise,
        partial(losses_of, _surprise, train, test),
    )


def _moons(samples: int, random: torch.Generator) -> Batch:
    which = torch.randint(2, (samples,), generator=random)
    sign = 1 - 2 * which
    angle = math.pi * torch.rand(samples, generator=random)
    places = torch.stack((sign * angle.cos() + which - 0.5, sign * angle.sin() + which / 2 - 0.25), 1)
    return places + 0.05 * torch.randn(samples, 2, generator=random), which


def _surprise(model: nn.Module, batch: Batch) -> Tensor:
    densities: Tensor = model(batch[0])
    return -densities.mean()


TASKS = (
    Task(
        "vae",
        "Variational autoencoder [784, 128, 8] on MNIST, batch 64",
        1500,
        "test bound",
        partial(images.checksum, "mnist"),
        drawing_digits,
        "mnist",
    ),
    Task.made("flow", "Normalising flow of two half moons, batch 128", 2000, "test surprise", flowing),
)
