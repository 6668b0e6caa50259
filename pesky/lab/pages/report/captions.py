"""What the report says below a figure: what it shows, and how much of it was drawn."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pesky.lab.figures.errors import VIEWS, View

__all__ = ["FIGURES", "Figure", "count"]

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, as ``pesky figure`` leaves it in a folder."""

    name: str  # of its files
    title: str
    command: str  # that draws it
    extent: Callable[[Numbers], str]  # how much was drawn, from its numbers

    def caption(self, folder: Path) -> str:
        """Return the title with what the numbers beside the picture say; a quick figure has fewer."""
        try:
            numbers = json.loads((folder / f"{self.name}.json").read_text(encoding="utf-8"))
            return f"{self.title}: {self.extent(numbers)}."
        except (OSError, ValueError, LookupError, TypeError, AttributeError):  # absent, or not ours
            return f"{self.title}."


def count(number: int, thing: str) -> str:
    """Return a number of things in words a reader expects: ``1 run``, ``1,000 steps``."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _samples(numbers: Numbers) -> str:
    return count(numbers["samples"], "sample")


def _steps(numbers: Numbers) -> str:
    return f"{count(numbers['steps'], 'step')}, {count(numbers['runs'], 'run')}"


def _jumps(numbers: Numbers) -> str:
    jumps, every = count(numbers["jumps"], "jump"), count(numbers["every"], "step")
    return f"{jumps} by {numbers['jump']:g} sigma, {every} apart, {count(numbers['runs'], 'run')}"


def _raced(view: View) -> Callable[[Numbers], str]:
    return lambda numbers: ", ".join(name for name in VIEWS[view] if name not in numbers["missing"])


def _rates(numbers: Numbers) -> str:
    return f"{count(numbers['runs'], 'run')} of {count(numbers['epochs'], 'epoch')}"


def _epochs(numbers: Numbers) -> str:
    _, hidden, _ = numbers["layers"]
    return f"{count(len(numbers['test']), 'epoch')}, {count(hidden, 'hidden unit')}"


def _critical(numbers: Numbers) -> str:
    return f"{count(len(numbers['setups']), 'setup')}, {count(numbers['runs'], 'run')} for each C"


def _slow_start(numbers: Numbers) -> str:
    benchmarks = [name for name, value in numbers.items() if isinstance(value, dict)]
    values, runs = count(len(numbers["factors"]), "value"), count(numbers["runs"], "run")
    return f"{', '.join(benchmarks)}, {values} of C, {runs} each"


FIGURES = (
    Figure("idealised", "Per-sample quadratics and their mean", "pesky figure idealised", _samples),
    Figure("bowl", "Trajectories in a noisy bowl", "pesky figure bowl", _steps),
    Figure("quadratic", "Loss and rates on the noisy quadratic", "pesky figure quadratic", _steps),
    Figure("nonstationary", "The same while the optimum jumps", "pesky figure nonstationary", _jumps),
    Figure(
        "errors-mnist",
        "Training against test error, MNIST",
        "pesky figure errors --view mnist",
        _raced("mnist"),
    ),
    Figure(
        "errors-cifar",
        "Training against test error, CIFAR-10",
        "pesky figure errors --view cifar",
        _raced("cifar"),
    ),
    Figure(
        "errors-global",
        "Training against test error, zoomed out",
        "pesky figure errors --view global",
        _raced("global"),
    ),
    Figure("rates", "Learning rates through time on C0 and M0", "pesky figure rates", _rates),
    Figure("epochs", "A long run of vSGD-l on MNIST", "pesky figure epochs", _epochs),
    Figure(
        "critical",
        "Critical C, the largest that is unstable, against the parameters",
        "pesky figure critical",
        _critical,
    ),
    Figure(
        "slow-start", "Test error against the slow start's C", "pesky figure slow-start", _slow_start
    ),
)
