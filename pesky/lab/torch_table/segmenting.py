"""Segmentation: a small U-Net finds the pixels of digits under noise."""

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.lab.torch_models import UNet
from pesky.lab.torch_table import images
from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, mean_over
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "segmenting"]

_FIXED = 2016  # seed of the random numbers that judge
_SAMPLES, _JUDGED = 16, 500
_INK = 0.3  # pixels above it are a digit's
_CLUTTER = 0.5  # deviation of what lies over the image


def segmenting(seed: int, folder: Path | None) -> Instance:
    """Tell the pixels of digits from the background, under noise; the test number is wrong pixels."""
    train, _, test, _ = (part for part in images.mnist(folder))

    def some(part: Tensor, samples: int, random: torch.Generator) -> Batch:
        chosen = part[torch.randint(len(part), (samples,), generator=random)]
        image = chosen.view(-1, 1, images.SIDE, images.SIDE)
        noise = _CLUTTER * torch.randn(image.shape, generator=random)
        return image + noise, (image > _INK).float()

    judged, held_out = (some(part, _JUDGED, generator(_FIXED)) for part in (train, test))

    def evaluate(trained: nn.Module) -> Measured:
        return Measured(
            mean_over(_pixel_entropy, trained, judged), mean_over(_wrong_pixels, trained, held_out)
        )

    return Instance(
        UNet(), lambda step: some(train, _SAMPLES, generator(seed, step)), _pixel_entropy, evaluate
    )


def _pixel_entropy(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return F.binary_cross_entropy_with_logits(model(inputs), targets)


def _wrong_pixels(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    is_ink: Tensor = model(inputs) > 0
    return 100 * (is_ink != (targets > 0)).double().mean()


TASKS = (
    Task(
        "unet",
        "U-Net finds MNIST's digits under noise, batch 16",
        600,
        "wrong pixels, %",
        partial(images.checksum, "mnist"),
        segmenting,
        "mnist",
    ),
)
