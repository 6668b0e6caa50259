"""Tasks on MNIST and on the first file of CIFAR-10, as the paper's benchmarks have them."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.lab import datasets
from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, mean_over

__all__ = [
    "SIDE",
    "Shuffled",
    "autoencoding",
    "checksum",
    "classifying",
    "cross_entropy",
    "mnist",
    "percent_wrong",
]

SIDE = 28  # pixels, of MNIST's images

_JUDGED = 10_000  # training samples that the training loss is measured on


def checksum(dataset: str) -> str:
    """Return a sum of the published files' sums; the data need not be there."""
    sums = "".join(file.sha256 for file in datasets.FILES[dataset])
    return hashlib.sha256(sums.encode()).hexdigest()[:16]


def mnist(folder: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, then those of the test."""
    data = datasets.load("mnist", folder)
    train, labels = torch.from_numpy(data.train_inputs), torch.from_numpy(data.train_labels)
    return train, labels, torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_labels)


def classifying(
    dataset: str,
    model: Callable[[], nn.Module],
    batch: int,
    shape: tuple[int, ...],
    seed: int,
    folder: Path | None,
    *,
    tested: int | None = None,
) -> Instance:
    """Cross-entropy; the test number is the error in percent. `shape` is of one input.

    With `tested`, both are measured on so many samples of each part only.
    """
    data = datasets.load(dataset, folder)
    train, test = (
        torch.from_numpy(inputs).view(-1, *shape) for inputs in (data.train_inputs, data.test_inputs)
    )
    labels, test_labels = torch.from_numpy(data.train_labels), torch.from_numpy(data.test_labels)
    judged = tested or _JUDGED

    def evaluate(trained: nn.Module) -> Measured:
        return Measured(
            mean_over(cross_entropy, trained, (train[:judged], labels[:judged])),
            mean_over(percent_wrong, trained, (test[:tested], test_labels[:tested])),
        )

    return Instance(model(), Shuffled((train, labels), batch, seed), cross_entropy, evaluate)


def autoencoding(
    dataset: str, model: Callable[[], nn.Module], batch: int, seed: int, folder: Path | None
) -> Instance:
    """Half the squared distance of output and input, summed over pixels; also the test number."""
    data = datasets.load(dataset, folder)
    train, test = torch.from_numpy(data.train_inputs), torch.from_numpy(data.test_inputs)
    measure = partial(mean_over, _reconstruction)

    def evaluate(trained: nn.Module) -> Measured:
        judged = train[:_JUDGED]
        return Measured(measure(trained, (judged, judged)), measure(trained, (test, test)))

    return Instance(model(), Shuffled((train, train), batch, seed), _reconstruction, evaluate)


class Shuffled:
    """Batches in an order of their own for each epoch; the last of an epoch may be smaller."""

    def __init__(self, samples: Batch, size: int, seed: int) -> None:
        """Take the samples; every seed has orders of its own."""
        self._samples = samples
        self._size = size
        self._seed = seed
        self._steps = -(-len(samples[0]) // size)  # in an epoch
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step."""
        epoch, number = divmod(step, self._steps)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(len(self._samples[0]), generator=generator(self._seed, epoch))
        chosen = self._order[number * self._size : (number + 1) * self._size]
        inputs, targets = self._samples
        return inputs[chosen], targets[chosen]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def percent_wrong(model: nn.Module, batch: Batch) -> Tensor:
    """Return how many samples of a batch are classified wrongly, in percent."""
    inputs, labels = batch
    outputs: Tensor = model(inputs)
    return 100 * (outputs.argmax(1) != labels).double().mean()


def _reconstruction(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    squares: Tensor = (model(inputs) - targets).square()
    return squares.sum(1).mean() / 2
