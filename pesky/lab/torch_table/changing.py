"""Tasks that change during the run: the mean loss over all batches says who follows.

The test number is that of the task which is current at the end.
"""

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from pesky.lab.torch_models import CharacterLSTM, mlp
from pesky.lab.torch_table import images, text
from pesky.lab.torch_table.images import cross_entropy, percent_wrong
from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, losses_of, mean_over
from pesky.lab.torch_table.synthetic import half_square
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "permuting", "relabelling", "rotating", "switching"]

_PROBLEM = 2017  # seed of the changes, which are the same for all seeds of a run
_JUDGED = 2000  # samples that are measured at the end

_PERMUTED_STEPS, _PERMUTED_EVERY = 3000, 250
_RELABELLED_STEPS, _RELABELLED_EVERY = 3000, 200
_HELD_OUT = 300  # digits of 1,797
_SWITCHED_STEPS, _SWITCHED_EVERY = 1800, 150

_ROTATED_STEPS = 3000
_INPUTS, _SAMPLES, _NOISE = 20, 4, 0.1
_TURN = 2 * math.pi / 6000  # a step, in each of ten planes


def permuting(seed: int, folder: Path | None) -> Instance:
    """Classify MNIST with its pixels in another order every 250 steps."""
    train, labels, test, test_labels = images.mnist(folder)
    shuffled = images.Shuffled((train, labels), 32, seed)

    def batch(step: int) -> Batch:
        inputs, targets = shuffled(step)
        return inputs[:, _order(train.shape[1], step // _PERMUTED_EVERY)], targets

    last = _order(train.shape[1], (_PERMUTED_STEPS - 1) // _PERMUTED_EVERY)
    return _classified(
        mlp(784, 100, 10), batch, (train[:_JUDGED, last], labels[:_JUDGED]), (test[:, last], test_labels)
    )


def relabelling(seed: int, folder: Path | None) -> Instance:
    """Classify scikit-learn's digits, whose names change every 200 steps; no folder is needed."""
    inputs, labels = _digits()
    train, test = ((inputs[part], labels[part]) for part in (slice(_HELD_OUT, None), slice(_HELD_OUT)))
    shuffled = images.Shuffled(train, 16, seed)

    def batch(step: int) -> Batch:
        drawn, targets = shuffled(step)
        return drawn, _order(10, step // _RELABELLED_EVERY)[targets]

    last = _order(10, (_RELABELLED_STEPS - 1) // _RELABELLED_EVERY)
    return _classified(mlp(64, 64, 10), batch, (train[0], last[train[1]]), (test[0], last[test[1]]))


def _classified(model: nn.Module, batch: Callable[[int], Batch], train: Batch, test: Batch) -> Instance:
    def evaluate(trained: nn.Module) -> Measured:
        return Measured(
            mean_over(cross_entropy, trained, train), mean_over(percent_wrong, trained, test)
        )

    return Instance(model, batch, cross_entropy, evaluate)


def _order(size: int, number: int) -> Tensor:
    """Return an order of so many things; the first is the natural one."""
    return torch.randperm(size, generator=generator(_PROBLEM, number)) if number else torch.arange(size)


@lru_cache(maxsize=1)
def _digits() -> Batch:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.from_numpy(found.data).float() / 16, torch.from_numpy(found.target).long()


def _checksum_of_digits() -> str:
    return hashlib.sha256(_digits()[0].numpy().tobytes()).hexdigest()[:16]


def rotating(seed: int, folder: Path | None) -> Instance:
    """Regress on weights that turn all the time, halfway round in the end; no folder is needed."""

    def batch(step: int) -> Batch:
        return _around(_weights(step), _SAMPLES, generator(seed, step))

    last = _weights(_ROTATED_STEPS)
    train, test = (_around(last, _JUDGED, generator(_PROBLEM, part)) for part in (1, 2))
    evaluate = partial(losses_of, half_square, train, test)
    return Instance(nn.Linear(_INPUTS, 1, bias=False), batch, half_square, evaluate)


def _weights(step: int) -> Tensor:
    """Return weights of length 1 in each plane of two inputs."""
    first = 2 * math.pi * torch.rand(_INPUTS // 2, generator=generator(_PROBLEM))
    angles = first + _TURN * step
    return torch.cat((angles.cos(), angles.sin()))


def _around(weights: Tensor, samples: int, random: torch.Generator) -> Batch:
    inputs = torch.randn(samples, _INPUTS, generator=random)
    return inputs, inputs @ weights + _NOISE * torch.randn(samples, generator=random)


def switching(seed: int, folder: Path | None) -> Instance:
    """Predict characters of source text, of the same turned round, and of a cipher, in turn."""
    found = text.source_text()
    cipher = torch.randperm(found.symbols, generator=generator(_PROBLEM))

    def some(part: Tensor, which: int, samples: int, random: torch.Generator) -> Batch:
        starts = torch.randint(len(part) - text.LENGTH, (samples,), generator=random)
        plain = text.windows(part, starts)
        if which == 0:
            return plain
        if which == 1:
            inputs, _ = plain
            turned = torch.cat((inputs, plain[1][:, -1:]), 1).flip(1)
            return turned[:, :-1], turned[:, 1:]
        return cipher[plain[0]], cipher[plain[1]]

    def batch(step: int) -> Batch:
        return some(found.train, step // _SWITCHED_EVERY % 3, 16, generator(seed, step))

    last = (_SWITCHED_STEPS - 1) // _SWITCHED_EVERY % 3
    parts = (found.train, found.held_out)
    train, test = (some(part, last, 256, generator(_PROBLEM)) for part in parts)
    evaluate = partial(losses_of, text.next_character, train, test)
    return Instance(CharacterLSTM(found.symbols, 32, 96), batch, text.next_character, evaluate)


_ERROR = "last test error, %"

TASKS = (
    Task(
        "permuted-mnist",
        "MLP [784, 100, 10] on MNIST, pixels in another order every 250 steps, batch 32",
        _PERMUTED_STEPS,
        _ERROR,
        partial(images.checksum, "mnist"),
        permuting,
        "mnist",
        is_changing=True,
    ),
    Task(
        "relabelled-digits",
        "MLP [64, 64, 10] on 8 x 8 digits whose names change every 200 steps, batch 16",
        _RELABELLED_STEPS,
        _ERROR,
        _checksum_of_digits,
        relabelling,
        is_changing=True,
    ),
    Task.made(
        "rotating-regression",
        "Linear regression on weights that turn, batch 4",
        _ROTATED_STEPS,
        "last loss",
        rotating,
        is_changing=True,
    ),
    Task(
        "switching-text",
        "LSTM on three kinds of text in turn, 150 steps each, 16 x 64 characters a batch",
        _SWITCHED_STEPS,
        "last held-out loss",
        text.checksum,
        switching,
        is_changing=True,
    ),
)
