"""A task at a seed: what every contestant is given, and how its model is judged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "Batch",
    "Instance",
    "Loss",
    "Measured",
    "generator",
    "in_eval_mode",
    "losses_of",
    "mean_over",
]

_AT_ONCE = 500  # samples in one pass of an evaluation

Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


class Measured(NamedTuple):
    """What a model is judged by."""

    train: float  # loss
    test: float  # as the task says


class Instance(NamedTuple):
    """The model as it starts, the batches in their order, and the loss of one."""

    model: nn.Module
    batch: Callable[[int], Batch]  # of a step, from 0
    loss: Loss
    evaluate: Callable[[nn.Module], Measured]


def generator(seed: int, number: int = 0) -> torch.Generator:
    """Return a stream of random numbers of its own for each seed and number."""
    # Mixed into 32 bits: torch ignores all beyond them.
    (mixed,) = np.random.SeedSequence((seed, number)).generate_state(1)
    return torch.Generator().manual_seed(int(mixed))


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients; every module is then in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def mean_over(measure: Loss, model: nn.Module, samples: Batch) -> float:
    """Return the mean of a measure that is itself a mean over samples."""
    total = 0.0
    with in_eval_mode(model):
        for first in range(0, len(samples[0]), _AT_ONCE):
            inputs, targets = (part[first : first + _AT_ONCE] for part in samples)
            total += float(measure(model, (inputs, targets))) * len(inputs)
    return total / len(samples[0])


def losses_of(loss: Loss, train: Batch, test: Batch, trained: nn.Module) -> Measured:
    """Return the mean loss on both parts of the data."""
    return Measured(mean_over(loss, trained, train), mean_over(loss, trained, test))
