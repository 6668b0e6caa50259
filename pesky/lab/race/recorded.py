"""What a store holds of a benchmark, whichever races brought it there."""

import statistics
from collections import defaultdict
from dataclasses import dataclass

from pesky.lab.benchmarks import METHODS
from pesky.lab.race.contest import FINAL_SEEDS_FROM, PROTOCOL, TUNING_SEEDS
from pesky.lab.race.grids import Settings, parse_settings, settings_of
from pesky.lab.race.store import Row, Store
from pesky.online import NUMERICS_VERSION

__all__ = ["Recorded", "Setting"]


@dataclass(frozen=True)
class Setting:
    """One setting of a method with its tuning runs."""

    method: str
    settings: Settings
    runs: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        """Whether all tuning runs came to their end."""
        return len(self.runs) == len(TUNING_SEEDS) and all(
            run.status == "finished" and run.test is not None for run in self.runs
        )

    def mean(self, part: str) -> float:
        """Return the mean error of a complete setting; `part` is train or test."""
        return statistics.fmean(getattr(run, part) for run in self.runs)


class Recorded:
    """The rows of one benchmark under the paper's protocol: tuned on the test set, all data."""

    def __init__(self, store: Store, benchmark: str, epochs: int = 6) -> None:
        """Read them."""
        self.benchmark_name = benchmark
        tuning: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self._final: dict[tuple[str, str], list[Row]] = defaultdict(list)
        rows = store.rows(
            benchmark=benchmark,
            epochs=epochs,
            split="full",
            numerics=NUMERICS_VERSION,
            protocol=PROTOCOL,
        )
        for key, row in rows:
            runs = self._final if key.seed >= FINAL_SEEDS_FROM else tuning
            runs[key.method, key.settings].append(row)
        self.settings = [
            Setting(method, parse_settings(text), tuple(runs)) for (method, text), runs in tuning.items()
        ]

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods of which there is any run."""
        present = {setting.method for setting in self.settings}
        return tuple(method for method in METHODS if method in present)

    def winner(self, method: str) -> Setting | None:
        """Return the best setting."""
        grid = settings_of(method, "full", self.benchmark_name)  # of equals the first in it wins
        complete = [one for one in self.settings if one.method == method and one.complete]
        complete.sort(key=lambda one: grid.index(one.settings))
        return min(complete, key=lambda one: one.mean("test"), default=None)

    def winners(self) -> dict[str, Settings]:
        """Return each method's best settings."""
        found = {method: self.winner(method) for method in self.methods}
        return {method: one.settings for method, one in found.items() if one is not None}

    def results(self) -> dict[str, list[Row]]:
        """Return the fresh runs of each method's winner."""
        return {
            method: rows
            for method, settings in self.winners().items()
            for (name, text), rows in self._final.items()
            if name == method and parse_settings(text) == settings
        }

    def tried(self, method: str) -> int:
        """Return how many settings were compared."""
        return sum(setting.method == method for setting in self.settings)

    def cost(self, method: str) -> tuple[int, float]:
        """Return samples and seconds spent in comparing them."""
        runs = [run for one in self.settings if one.method == method for run in one.runs]
        return sum(run.samples for run in runs), sum(run.seconds for run in runs)
