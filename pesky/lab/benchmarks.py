"""The benchmarks (Table 1 of the paper, and digits), and methods by the names used in tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from pesky.errors import InputError
from pesky.lab import datasets

if TYPE_CHECKING:  # the engine brings Numba, which takes long to import; names alone need neither
    from pesky.online import Method, Network

__all__ = [
    "BENCHMARKS",
    "GRANULARITIES",
    "L2",
    "METHODS",
    "METHOD_TITLES",
    "ROBUST",
    "SETTINGS",
    "Benchmark",
    "Task",
    "error_unit",
    "method_named",
]

L2 = 1e-4


@dataclass(frozen=True)
class Benchmark:
    """A data set, a network and a loss."""

    name: str
    dataset: str
    layers: tuple[int, ...]
    loss: Literal["cross-entropy", "squared-error"] = "cross-entropy"

    def network(self, seed: int) -> "Network":
        """Return the network as it starts."""
        from pesky.online import Network

        return Network(self.layers, loss=self.loss, l2=L2, seed=seed)

    def task(self, folder: str | Path | None = None) -> "Task":
        """Read the data."""
        data = datasets.load(self.dataset, folder)
        labelled = self.loss == "cross-entropy"
        return Task(
            data.train_inputs,
            data.train_labels if labelled else None,
            data.test_inputs,
            data.test_labels if labelled else None,
        )


@dataclass(frozen=True)
class Task:
    """What a run needs of the data; targets of None are the inputs themselves."""

    train_inputs: NDArray[np.float32]
    train_targets: NDArray[np.int64] | None
    test_inputs: NDArray[np.float32]
    test_targets: NDArray[np.int64] | None


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("digits", "digits", (64, 30, 10)),
        Benchmark("M0", "mnist", (784, 10)),
        Benchmark("M1", "mnist", (784, 120, 10)),
        Benchmark("M2", "mnist", (784, 500, 300, 10)),
        Benchmark("C0", "cifar10", (3072, 10)),
        Benchmark("C1", "cifar10", (3072, 360, 10)),
        Benchmark("CR", "cifar10", (3072, 120, 3072), "squared-error"),
    )
}

GRANULARITIES: dict[str, Literal["element", "block", "global"]] = {
    "vsgd-l": "element",
    "vsgd-b": "block",
    "vsgd-g": "global",
}
ROBUST = "vsgd-robust"  # which the paper does not have
# Every method's name in tables, and what is to be set of it.
SETTINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*GRANULARITIES, ROBUST), ()),
    "sgd": ("eta0", "gamma"),
    "adagrad": ("eta0",),
    "smd": ("eta0", "mu", "tau"),
    "amari": ("eta0", "tau"),
    "almeida": ("eta0", "tau"),
}
METHODS = tuple(SETTINGS)
METHOD_TITLES = {  # as pages call them
    "vsgd-l": "vSGD-l",
    "vsgd-b": "vSGD-b",
    "vsgd-g": "vSGD-g",
    ROBUST: "vSGD robust",
    "sgd": "SGD",
    "adagrad": "AdaGrad",
    "smd": "SMD",
    "amari": "Amari",
    "almeida": "Almeida",
}


def error_unit(loss: str) -> str:
    """Return what a network's error is measured in."""
    return "%" if loss == "cross-entropy" else "½|x−y|²"


def method_named(
    name: str, settings: Mapping[str, str], training_samples: int, **options: Any
) -> "Method":
    """Return a method by its name in tables, its settings given as text such as ``1/3`` or ``3e-2``.

    As in the paper's Table 1, gamma is in units of 1 / (training samples). `options` go to the
    method as they are.

    >>> method_named("sgd", {"eta0": "3e-2", "gamma": "1/2"}, training_samples=100)
    SGD(eta0=0.03, gamma=0.005)
    """
    if name not in SETTINGS:
        raise InputError(f"unknown method {name!r}; there are {', '.join(METHODS)}")
    wanted = SETTINGS[name]
    superfluous = [setting for setting in settings if setting not in wanted]
    if superfluous:
        takes = f"takes {', '.join(wanted)}" if wanted else "needs no settings"
        raise InputError(f"{name} has no setting {superfluous[0]!r}; it {takes}")
    missing = [setting for setting in wanted if setting not in settings]
    if missing:
        raise InputError(f"{name} needs {', '.join(wanted)}; {', '.join(missing)} not given")
    from pesky import online

    if name in GRANULARITIES:
        return online.VSGD(GRANULARITIES[name], **options)
    if name == ROBUST:
        return online.VSGD(**{**options, "dialect": "robust"})
    values = {setting: _number(setting, text) for setting, text in settings.items()}
    if "gamma" in values:
        values["gamma"] /= training_samples
    rivals: dict[str, Any] = {
        "sgd": online.SGD,
        "adagrad": online.AdaGrad,
        "smd": online.SMD,
        "amari": online.Amari,
        "almeida": online.Almeida,
    }
    return rivals[name](**values, **options)  # type: ignore[no-any-return]


def _number(name: str, text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{name} must be a number such as 3e-2 or 1/3; got {text!r}") from None
