"""The settings that rivals are tuned over: the paper's grids, a coarse form, and its own winners."""

from itertools import product
from typing import Literal, TypeAlias

from pesky.errors import InputError
from pesky.lab import paper
from pesky.lab.benchmarks import METHODS, ROBUST, SETTINGS
from pesky.lab.runs.settings import Settings

__all__ = ["Grid", "listed_methods", "settings_of"]

Grid: TypeAlias = Literal["full", "coarse", "paper"]

_ETA0 = (*(f"{digit}e{power}" for power in range(-7, 1) for digit in (1, 3)), "1e1")
_FULL = {
    "eta0": _ETA0,
    "gamma": ("0", "1/3", "1/2", "1"),  # in 1 / (training samples)
    "mu": ("1e-4", "1e-3", "1e-2", "1e-1"),
    "tau": ("1e5", "5e4", "1e4", "5e3", "1e3", "1e2", "1e1"),
}
_COARSE = {
    "eta0": _ETA0[::2],
    "gamma": ("0", "1"),
    "mu": ("1e-3", "1e-2"),
    "tau": ("1e4", "1e3", "1e2"),
}


def settings_of(method: str, grid: Grid, benchmark: str) -> list[Settings]:
    """Return all settings of a method in a grid; vSGD has one, the empty one.

    >>> [len(settings_of(method, "full", "M0")) for method in ("sgd", "adagrad", "smd", "amari")]
    [68, 17, 476, 119]
    """
    axes = SETTINGS[method]
    if grid == "paper" and axes:
        published = paper.BEST_SETTINGS.get(benchmark, {}).get(method)
        if published is None:
            raise InputError(
                f"the paper has no setting of {method} for {benchmark}; choose another --grid"
            )
        return [published]
    values = _COARSE if grid == "coarse" else _FULL
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*(values[axis] for axis in axes))]


def listed_methods(benchmark: str) -> tuple[str, ...]:
    """Return the methods that the paper lists for a benchmark, and vSGD's robust form; else all."""
    listed = {*paper.TRAIN.get(benchmark, METHODS), ROBUST}
    return tuple(method for method in METHODS if method in listed)
