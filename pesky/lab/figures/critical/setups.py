"""The networks whose critical C is searched, what they learn from and for how long."""

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from pesky.errors import InputError
from pesky.lab.benchmarks import BENCHMARKS, Benchmark, Task

if TYPE_CHECKING:
    from pesky.online import VSGD

__all__ = ["SHORTEST", "WINDOW", "Only", "Setup", "chosen_setups"]

Only = Literal["all", "benchmarks", "xor"]

WINDOW = 100  # samples
SHORTEST = 1000  # samples
XOR_INITIAL_SAMPLES = 10

BENCHMARK_NAMES = ("M0", "M1", "M2", "C0", "C1", "CR")
XOR_UNITS = (2, 10, 100, 1000, 10_000, 100_000, 500_000)
QUICK_BENCHMARKS = ("M0", "C0")
QUICK_UNITS = XOR_UNITS[:4]

_XOR_INPUTS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float32)
_XOR_LABELS = np.array([0, 1, 1, 0], np.int64)


@dataclass(frozen=True)
class Setup:
    """A network and what it learns from; without a task, XOR."""

    benchmark: Benchmark
    task: Task | None = None

    @property
    def name(self) -> str:
        """Return how figure and files call it."""
        return self.benchmark.name

    @property
    def parameters(self) -> int:
        """Return d, without making the network."""
        return sum((below + 1) * above for below, above in pairwise(self.benchmark.layers))

    @property
    def horizon(self) -> int:
        """Return the samples after which a run counts as stable: whole windows."""
        return WINDOW * math.ceil(max(SHORTEST, 2 * math.sqrt(self.parameters)) / WINDOW)

    def task_at(self, seed: int) -> Task:
        """Return what a run learns from: of XOR as many random draws as the horizon has."""
        if self.task is not None:
            return self.task
        drawn = np.random.default_rng([seed, 3]).integers(len(_XOR_LABELS), size=self.horizon)
        return Task(_XOR_INPUTS[drawn], _XOR_LABELS[drawn], _XOR_INPUTS, _XOR_LABELS)

    def method(self, factor: float) -> "VSGD":
        """Return vSGD-l with C = `factor`.

        A thousandth of XOR's four points is one sample, whose squared gradient is all but zero at many
        units and no scale for the other points; so XOR starts from 10, as streams do.
        """
        from pesky.online import VSGD

        return VSGD(slow_start=factor, init_samples=None if self.task else XOR_INITIAL_SAMPLES)


def chosen_setups(quick: bool, only: Only, folder: str | Path | None) -> list[Setup]:
    """Return the networks to study, those with fewer parameters first: they are cheap."""
    if only not in ("all", "benchmarks", "xor"):
        raise InputError(f"only must be 'all', 'benchmarks' or 'xor'; got {only!r}")
    setups = []
    if only != "xor":
        names = QUICK_BENCHMARKS if quick else BENCHMARK_NAMES
        setups += [Setup(BENCHMARKS[name], BENCHMARKS[name].task(folder)) for name in names]
    if only != "benchmarks":
        units = QUICK_UNITS if quick else XOR_UNITS
        setups += [Setup(Benchmark(f"XOR {count}", "xor", (2, count, 2))) for count in units]
    return sorted(setups, key=lambda setup: setup.parameters)
