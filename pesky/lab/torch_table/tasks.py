"""The tasks of the table, by the names that rows and options have."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from pesky.lab.torch_models import (
    CharacterLSTM,
    CharacterTransformer,
    TiedTransformer,
    lenet,
    mlp,
    resnet,
)
from pesky.lab.torch_table import (
    changing,
    generative,
    huggingface,
    images,
    lora,
    poisson,
    policy,
    segmenting,
    selfsupervised,
    splits,
    synthetic,
    tabular,
    text,
)
from pesky.lab.torch_table.instance import Instance
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "Task"]

_MNIST, _CIFAR = 60_000, 10_000  # training samples
_ERROR = "test error, %"


def _on_mnist(
    name: str, title: str, model: Callable[[], nn.Module], batch: int, epochs: int, *shape: int
) -> Task:
    begin = partial(images.classifying, "mnist", model, batch, shape or (784,))
    return _in_epochs(name, f"{title} on MNIST", _MNIST, batch, epochs, _ERROR, "mnist", begin)


def _on_cifar(name: str, title: str, model: Callable[[], nn.Module], batch: int, *shape: int) -> Task:
    begin = partial(images.classifying, "cifar10", model, batch, shape or (3072,))
    return _in_epochs(name, f"{title} on CIFAR-10", _CIFAR, batch, 6, _ERROR, "cifar10", begin)


def _in_epochs(
    name: str,
    title: str,
    samples: int,
    batch: int,
    epochs: int,
    test: str,
    dataset: str,
    begin: Callable[[int, Path | None], Instance],
) -> Task:
    title += f", batch {batch}, {epochs} epoch{'s' * (epochs > 1)}"
    steps = epochs * -(-samples // batch)
    return Task(name, title, steps, test, partial(images.checksum, dataset), begin, dataset)


def _transformer(symbols: int) -> CharacterTransformer:
    return CharacterTransformer(symbols, width=64, layers=2, length=text.LENGTH)


def _lstm(symbols: int) -> CharacterLSTM:
    return CharacterLSTM(symbols, width=64, hidden=128)


def _tied_transformer(symbols: int) -> TiedTransformer:
    return TiedTransformer(symbols, width=64, layers=2, length=text.LENGTH)


def _on_text(
    name: str, title: str, begin: Callable[[int, Path | None], Instance], steps: int = 1800
) -> Task:
    title += " on Python source text, 16 x 64 characters a batch"
    return Task(name, title, steps, "held-out loss", text.checksum, begin)


_ALL = (
    _on_mnist("lenet", "LeNet", lenet, 64, 3, 1, 28, 28),
    _on_mnist("mlp-1", "MLP [784, 120, 10]", partial(mlp, 784, 120, 10), 1, 1),
    _on_mnist("mlp-64", "MLP [784, 120, 10]", partial(mlp, 784, 120, 10), 64, 6),
    _on_mnist("mlp-1024", "MLP [784, 120, 10]", partial(mlp, 784, 120, 10), 1024, 6),
    _on_cifar("softmax-1", "Softmax", partial(mlp, 3072, 10), 1),
    _on_cifar("softmax-64", "Softmax", partial(mlp, 3072, 10), 64),
    _on_cifar("cifar-mlp", "MLP [3072, 360, 10]", partial(mlp, 3072, 360, 10), 64),
    _on_cifar("resnet", "Batch-norm ResNet", resnet, 64, 3, 32, 32),
    _in_epochs(
        "autoencoder",
        "Autoencoder [3072, 120, 3072] on CIFAR-10",
        _CIFAR,
        64,
        6,
        "reconstruction error",
        "cifar10",
        partial(images.autoencoding, "cifar10", partial(mlp, 3072, 120, 3072), 64),
    ),
    _on_text("transformer", "2-layer transformer", partial(text.predicting, _transformer)),
    _on_text("lstm", "LSTM", partial(text.predicting, _lstm)),
    *synthetic.TASKS,
    *huggingface.TASKS,
    _on_text(
        "tied-transformer",
        "2-layer transformer with tied embeddings of variance 1",
        partial(text.predicting, _tied_transformer),
        800,
    ),
    *lora.TASKS,
    *poisson.TASKS,
    *segmenting.TASKS,
    *policy.TASKS,
    *tabular.TASKS,
    *generative.TASKS,
    *selfsupervised.TASKS,
    *changing.TASKS,
)
_BY_NAME = {task.name: task for task in _ALL}

TASKS = {
    name: replace(_BY_NAME[name], is_first=name in splits.FIRST)
    for name in (*splits.DEVELOPMENT, *splits.TEST)
}
