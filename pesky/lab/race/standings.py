"""From rows to the paper's Tables 1 to 3: means, spreads, and who is not worse than the best."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pesky.lab import paper
from pesky.lab.race.grids import listed_methods
from pesky.lab.race.rows import Row
from pesky.lab.runs.means import PARTS, Mean, Part
from pesky.lab.runs.settings import Settings

__all__ = ["SIGNIFICANCE", "MeanError", "Outcome", "Standing", "agrees", "standings", "without_result"]

SIGNIFICANCE = 0.01  # the paper's p
AGREEMENT = 0.05  # relative, beside two standard errors


@dataclass(frozen=True)
class MeanError(Mean):
    """One number of Table 2 or 3 with what is known about it."""

    bold: bool = False  # not different from the best at p = 0.01
    paper: float | None = None

    def __str__(self) -> str:
        """Mean and standard error."""
        return f"{self.mean:.2f} ± {self.error:.2f}"

    @property
    def agrees(self) -> bool | None:
        """Whether it is the paper's number, within 5 % or two standard errors; None without one."""
        return None if self.paper is None else agrees(self.mean, self.error, self.paper)

    def numbers(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "mean": self.mean,
            "deviation": self.deviation,
            "runs": self.runs,
            "bold": self.bold,
            "paper": self.paper,
            "agrees": self.agrees,
        }


def agrees(mean: float, error: float, published: float) -> bool:
    """Whether two means agree within 5 % or two of our standard errors."""
    return abs(mean - published) <= max(AGREEMENT * published, 2 * error)


@dataclass(frozen=True)
class Standing:
    """A method in a race: its winning settings, what they gave, and what finding them cost."""

    method: str
    settings: Settings | None  # None: no setting came to its end
    settings_tried: int
    train: MeanError | None
    test: MeanError | None
    failed: int  # final runs that diverged
    tuning_samples: int
    tuning_seconds: float

    def error(self, part: Part) -> MeanError | None:
        """Return the error on the training or the test set."""
        return self.train if part == "train" else self.test

    def numbers(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "method": self.method,
            "settings": self.settings,
            "settings_tried": self.settings_tried,
            "train": None if self.train is None else self.train.numbers(),
            "test": None if self.test is None else self.test.numbers(),
            "failed_runs": self.failed,
            "tuning_samples": self.tuning_samples,
            "tuning_seconds": round(self.tuning_seconds, 1),
        }


class Outcome(Protocol):
    """What standings are made from: a race that has been run, or the rows of one in a store."""

    @property
    def benchmark_name(self) -> str:
        """Return which benchmark it is."""
        ...

    @property
    def epochs(self) -> int:
        """Return after how many epochs errors are measured."""
        ...

    @property
    def methods(self) -> tuple[str, ...]:
        """Return who took part."""
        ...

    def winners(self) -> dict[str, Settings]:
        """Return each method's best settings."""
        ...

    def results(self) -> dict[str, list[Row]]:
        """Return the fresh runs of each method's winner."""
        ...

    def tried(self, method: str) -> int:
        """Return how many settings were compared."""
        ...

    def cost(self, method: str) -> tuple[int, float]:
        """Return samples and seconds spent in comparing them."""
        ...


def standings(race: Outcome) -> list[Standing]:
    """Return every method's standing, best test error first; those without a result come last."""
    winners, results = race.winners(), race.results()
    bold = {part: _not_worse(results, part) for part in PARTS}

    def error(method: str, part: Part) -> MeanError | None:
        published = paper.published_error(part, race.benchmark_name, method, race.epochs)
        found = MeanError.of(_values(results.get(method, []), part))
        return found and replace(found, bold=method in bold[part], paper=published)

    rows = []
    for method in race.methods:
        samples, seconds = race.cost(method)
        rows.append(
            Standing(
                method=method,
                settings=winners.get(method),
                settings_tried=race.tried(method),
                train=error(method, "train"),
                test=error(method, "test"),
                failed=sum(run.status != "finished" for run in results.get(method, [])),
                tuning_samples=samples,
                tuning_seconds=seconds,
            )
        )
    return sorted(rows, key=lambda row: math.inf if row.test is None else row.test.mean)


def without_result(benchmark: str, rows: Mapping[str, Standing]) -> list[str]:
    """Return the methods listed for a benchmark that have no test error yet; `rows` are by method."""
    tested = {method for method, row in rows.items() if row.test is not None}
    return [method for method in listed_methods(benchmark) if method not in tested]


def _values(runs: Sequence[Row], part: Part) -> list[float]:
    values = (getattr(run, part) for run in runs if run.status == "finished")
    return [value for value in values if value is not None]


def _not_worse(results: dict[str, list[Row]], part: Part) -> set[str]:
    """Return the methods that do not differ from the best at p = 0.01, by Welch's t-test."""
    samples = {method: _values(runs, part) for method, runs in results.items()}
    samples = {method: values for method, values in samples.items() if values}
    if not samples:
        return set()
    best = min(samples, key=lambda method: statistics.fmean(samples[method]))
    return {
        method for method, values in samples.items() if method == best or _same(values, samples[best])
    }


def _same(values: list[float], best: list[float]) -> bool:
    if len(values) < 2 or len(best) < 2:
        return False
    return welch(values, best) >= SIGNIFICANCE


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the p-value of Welch's t-test; runs that do not vary at all differ or do not."""
    from scipy.special import stdtr  # here, because its import takes longer than all of the tests

    shares = [statistics.variance(values) / len(values) for values in (one, other)]
    gap, spread = statistics.fmean(one) - statistics.fmean(other), sum(shares)
    if spread == 0:
        return float(gap == 0)
    sizes = (len(one), len(other))
    freedom = spread**2 / sum(share**2 / (size - 1) for share, size in zip(shares, sizes, strict=True))
    return float(2 * stdtr(freedom, -abs(gap) / math.sqrt(spread)))  # Student's, both tails
