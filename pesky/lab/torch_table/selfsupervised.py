"""Self-supervised tasks: to find the other view of an image, and to guess what is masked."""

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.lab.torch_table import images
from pesky.lab.torch_table.instance import (
    Batch,
    Instance,
    Measured,
    generator,
    in_eval_mode,
    losses_of,
)
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "contrasting", "unmasking"]

_JUDGED = 2000  # images that a loss is measured on
_FIXED = 2016  # seed of the random numbers that judge

_VIEWED = 64  # images in a batch
_TEMPERATURE = 0.2
_LARGEST_SHIFT = 3  # pixels
_NEIGHBOURS_OF = 1000  # test images


def contrasting(seed: int, folder: Path | None) -> Instance:
    """Find the other view of each image among all; the test number is the nearest neighbour's error."""
    train, labels, test, test_labels = (part[:_JUDGED] for part in images.mnist(folder))
    test, test_labels = test[:_NEIGHBOURS_OF], test_labels[:_NEIGHBOURS_OF]
    every = images.mnist(folder)[0]
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 32),
    )

    def batch(step: int) -> Batch:
        random = generator(seed, step)
        chosen = every[torch.randint(len(every), (_VIEWED,), generator=random)]
        return _view(chosen, random), _view(chosen, random)

    fixed = generator(_FIXED)
    judged = _view(train, fixed), _view(train, fixed)

    def evaluate(trained: nn.Module) -> Measured:
        with in_eval_mode(trained):
            known, asked = (
                F.normalize(trained(part.view(-1, 1, images.SIDE, images.SIDE)))
                for part in (train, test)
            )
        nearest = labels[(asked @ known.T).argmax(1)]
        wrong = 100 * float((nearest != test_labels).double().mean())
        return Measured(_mean_contrast(trained, judged), wrong)

    return Instance(model, batch, _contrast, evaluate)


def _view(chosen: Tensor, random: torch.Generator) -> Tensor:
    """Return images moved, brightened and with noise, each in its own way."""
    samples = len(chosen)
    shift = torch.randint(-_LARGEST_SHIFT, _LARGEST_SHIFT + 1, (samples, 2), generator=random)
    rows, columns = (
        ((torch.arange(images.SIDE) + shift[:, axis, None]) % images.SIDE) for axis in range(2)
    )
    which = torch.arange(samples)[:, None, None]
    moved = chosen.view(-1, images.SIDE, images.SIDE)[which, rows[:, :, None], columns[:, None, :]]
    bright = 0.5 + torch.rand(samples, 1, 1, generator=random)
    noise = 0.2 * torch.randn(moved.shape, generator=random)
    return (bright * moved + noise)[:, None]


def _contrast(model: nn.Module, batch: Batch) -> Tensor:
    one, other = (F.normalize(model(view)) for view in batch)
    alike = one @ other.T / _TEMPERATURE
    which = torch.arange(len(alike))
    return (F.cross_entropy(alike, which) + F.cross_entropy(alike.T, which)) / 2


def _mean_contrast(model: nn.Module, judged: Batch) -> float:
    """Return the mean over groups as large as a batch is, for the loss depends on their size."""
    with in_eval_mode(model):
        one, other = judged
        losses = [
            float(_contrast(model, (one[first : first + _VIEWED], other[first : first + _VIEWED])))
            for first in range(0, len(one) - _VIEWED + 1, _VIEWED)
        ]
    return sum(losses) / len(losses)


_PATCH, _PATCHES = 4, 49
_PIXELS = _PATCH * _PATCH
_MASKED = 36  # of 49 patches


class _Unmasking(nn.Module):
    """A small transformer over patches of which most are hidden."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Linear(_PIXELS, width)
        self.hidden = nn.Parameter(0.02 * torch.randn(width))
        self.position = nn.Parameter(0.02 * torch.randn(_PATCHES, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, _PIXELS)

    def forward(self, patches: Tensor, is_masked: Tensor) -> Tensor:
        """Return what all patches are thought to be."""
        seen = torch.where(is_masked[..., None], self.hidden, self.embedding(patches))
        guessed: Tensor = self.head(self.layers(seen + self.position))
        return guessed


def unmasking(seed: int, folder: Path | None) -> Instance:
    """Half the squared distance of hidden patches from what they are thought to be."""
    train, _, test, _ = images.mnist(folder)

    def some(part: Tensor, samples: int, random: torch.Generator) -> Batch:
        chosen = part[torch.randint(len(part), (samples,), generator=random)]
        order = torch.rand(samples, _PATCHES, generator=random).argsort(1)
        return _patches(chosen), order < _MASKED

    judged, held_out = (some(part, _JUDGED // 4, generator(_FIXED)) for part in (train, test))
    return Instance(
        _Unmasking(),
        lambda step: some(train, 16, generator(seed, step)),
        _hidden_part,
        partial(losses_of, _hidden_part, judged, held_out),
    )


def _patches(chosen: Tensor) -> Tensor:
    count = images.SIDE // _PATCH
    return chosen.view(-1, count, _PATCH, count, _PATCH).transpose(2, 3).reshape(-1, _PATCHES, _PIXELS)


def _hidden_part(model: nn.Module, batch: Batch) -> Tensor:
    patches, is_masked = batch
    squares: Tensor = (model(patches, is_masked) - patches).square().sum(2) / 2
    return (squares * is_masked).sum(1).mean()


TASKS = (
    Task(
        "contrastive",
        "Two views of MNIST's digits, a small convolutional network, batch 64",
        600,
        "nearest neighbour's error, %",
        partial(images.checksum, "mnist"),
        contrasting,
        "mnist",
    ),
    Task(
        "masked-autoencoder",
        "2-layer transformer guesses hidden patches of MNIST, batch 16",
        1000,
        "test loss",
        partial(images.checksum, "mnist"),
        unmasking,
        "mnist",
    ),
)
