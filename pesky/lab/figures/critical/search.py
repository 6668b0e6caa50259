"""The search of the critical C: on a grid, from above, with no run more than needed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["CRITICAL", "Found", "Trial", "grid", "search"]

CRITICAL = "critical: the largest C for which at least 10 % of the runs are unstable"


@dataclass(frozen=True)
class Trial:
    """What was seen at one C; not all runs are needed to know."""

    factor: float
    unstable: int
    runs: int


@dataclass(frozen=True)
class Found:
    """The end of a search: `factor` is None where no C of the grid is unstable."""

    factor: float | None
    status: Literal["found", "below 1", "not bounded by the grid"]
    trials: tuple[Trial, ...]


def search(unstable: Callable[[float, int], bool], factors: Sequence[float], runs: int) -> Found:
    """Return the largest of `factors` at which at least a tenth of `runs` are unstable.

    `unstable` tells it of a factor and a seed. From the largest factor down; a factor is left as soon
    as the runs still to come can change nothing.
    """
    needed = -(-runs // 10)
    trials: list[Trial] = []
    for factor in sorted(factors, reverse=True):
        trials.append(_trial(unstable, factor, runs, needed))
        if trials[-1].unstable >= needed:
            return Found(factor, "not bounded by the grid" if len(trials) == 1 else "found", (*trials,))
    return Found(None, "below 1", (*trials,))


def grid(parameters: int, per_decade: int) -> list[float]:
    """Return 1, ..., at most 10 d; so many a decade."""
    last = math.floor(per_decade * math.log10(10 * parameters))
    return [10.0 ** (power / per_decade) for power in range(last + 1)]


def _trial(unstable: Callable[[float, int], bool], factor: float, runs: int, needed: int) -> Trial:
    seen = 0
    for seed in range(runs):
        seen += unstable(factor, seed)
        if seen >= needed or seen + (runs - seed - 1) < needed:
            return Trial(factor, seen, seed + 1)
    return Trial(factor, seen, runs)
