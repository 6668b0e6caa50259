"""Tasks on tables and generated functions: regression, classification, ratings, and a long run."""

import hashlib
import math
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from pesky.lab.torch_models import mlp, relu_mlp
from pesky.lab.torch_table.images import Shuffled, cross_entropy, percent_wrong
from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, losses_of, mean_over
from pesky.lab.torch_table.synthetic import half_square
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "chirp", "friedman", "ratings", "raw_columns"]

_PROBLEM = 2015  # seed of the problems themselves

_COLUMNS = 10
_SAMPLES = 2000  # of each half of the regression
_NOISE = 0.2

_USERS, _ITEMS = 1000, 500
_WIDTH, _TRUE_WIDTH = 8, 3

_HELD_OUT = 114  # of 569 patients


def friedman(seed: int, folder: Path | None) -> Instance:
    """Regress on ten uniform columns of which five matter, as in Friedman's first test function."""
    random = generator(_PROBLEM)
    inputs = torch.rand(2 * _SAMPLES, _COLUMNS, generator=random)
    a, b, c, d, e = inputs[:, :5].unbind(1)
    clean = 10 * (math.pi * a * b).sin() + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e
    targets = (clean - clean.mean()) / clean.std() + _NOISE * torch.randn(clean.shape, generator=random)
    train, test = (
        (inputs[half], targets[half]) for half in (slice(None, _SAMPLES), slice(_SAMPLES, None))
    )
    evaluate = partial(losses_of, half_square, train, test)
    return Instance(relu_mlp(_COLUMNS, 64, 64, 1), Shuffled(train, 32, seed), half_square, evaluate)


def raw_columns(seed: int, folder: Path | None) -> Instance:
    """Classify scikit-learn's breast cancer data with its columns as they are, 0.001 to 4,000 large."""
    inputs, labels = _patients()
    order = torch.randperm(len(labels), generator=generator(_PROBLEM))
    test, train = ((inputs[part], labels[part]) for part in (order[:_HELD_OUT], order[_HELD_OUT:]))

    def evaluate(trained: nn.Module) -> Measured:
        return Measured(
            mean_over(cross_entropy, trained, train), mean_over(percent_wrong, trained, test)
        )

    return Instance(relu_mlp(30, 32, 32, 2), Shuffled(train, 16, seed), cross_entropy, evaluate)


@lru_cache(maxsize=1)
def _patients() -> Batch:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    return torch.from_numpy(found.data).float(), torch.from_numpy(found.target).long()


def _checksum_of_patients() -> str:
    return hashlib.sha256(_patients()[0].numpy().tobytes()).hexdigest()[:16]


def chirp(seed: int, folder: Path | None) -> Instance:
    """Fit a sine that gets faster; both numbers are of an even grid. No folder is needed."""
    grid = torch.linspace(0, 1, 500)[:, None]

    def batch(step: int) -> Batch:
        places = torch.rand(32, 1, generator=generator(seed, step))
        return places, _chirp(places)

    def evaluate(trained: nn.Module) -> Measured:
        loss = mean_over(half_square, trained, (grid, _chirp(grid)))
        return Measured(loss, loss)

    return Instance(mlp(1, 32, 32, 1), batch, half_square, evaluate)


def _chirp(places: Tensor) -> Tensor:
    return (4 * math.pi * (places + 0.5) ** 2).sin().squeeze(1)


class _Ratings(nn.Module):
    """The product of a user's and an item's row, of which a step touches only some."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(_USERS, _WIDTH, sparse=True)
        self.items = nn.Embedding(_ITEMS, _WIDTH, sparse=True)

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = pairs.unbind(1)
        products: Tensor = self.users(users) * self.items(items)
        return products.sum(1, keepdim=True)


def ratings(seed: int, folder: Path | None) -> Instance:
    """Factorise ratings, some users and items being much more frequent than others."""
    random = generator(_PROBLEM)
    users = torch.randn(_USERS, _TRUE_WIDTH, generator=random)
    items = torch.randn(_ITEMS, _TRUE_WIDTH, generator=random)

    def some(samples: int, random: torch.Generator) -> Batch:
        # Squares of even numbers: the first rows come up most often.
        chosen = torch.rand(samples, 2, generator=random).square() * torch.tensor([_USERS, _ITEMS])
        pairs = chosen.long()
        noise = _NOISE * torch.randn(samples, generator=random)
        return pairs, (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(1) + noise

    train = some(20_000, generator(_PROBLEM, 1))
    test = some(5_000, generator(_PROBLEM, 2))
    evaluate = partial(losses_of, half_square, train, test)
    return Instance(_Ratings(), Shuffled(train, 64, seed), half_square, evaluate)


TASKS = (
    Task.made("friedman", "MLP [10, 64, 64, 1] on Friedman's function", 3000, "test loss", friedman),
    Task(
        "raw-columns",
        "MLP [30, 32, 32, 2] on breast cancer data, columns not scaled, batch 16",
        2000,
        "test error, %",
        _checksum_of_patients,
        raw_columns,
    ),
    Task.made("sine-20k", "MLP [1, 32, 32, 1] on a sine that gets faster", 20_000, "loss", chirp),
    Task.made(
        "recommender",
        "Ratings by sparse embeddings, with dense gradients for those who refuse others, batch 64",
        3000,
        "test loss",
        ratings,
    ),
)
