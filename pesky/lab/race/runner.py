"""The runs of a race: which are needed, in an order that does not matter."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pesky.lab.race.contest import Contest, ContestRun
from pesky.lab.race.grids import Grid, settings_of
from pesky.lab.race.rows import Row, RunKey, Store
from pesky.lab.runs import completing
from pesky.lab.runs.settings import Settings
from pesky.lab.runs.workers import Threads, Workers

__all__ = ["Progress", "Race"]

Progress = completing.Progress[RunKey, Row]


@dataclass
class Race:
    """All runs of one contest: the yardstick, then the grids, then fresh runs of the winners."""

    contest: Contest
    store: Store
    methods: tuple[str, ...]
    grid: Grid
    seeds: int
    workers: Workers[ContestRun, Row] = field(default_factory=Threads)
    watch: Callable[[Progress], None] = field(default=lambda progress: None)

    def run(self, stop: threading.Event | None = None) -> None:
        """Do whatever is not in the store yet. Can be stopped, or killed, and called again."""
        stop = stop or threading.Event()
        runs = completing.Completion(self.store, self._do, self.workers.places, self.watch)
        runs.complete(self.contest.yardstick_keys(), stop)
        runs.complete(
            [key for method in self.methods for key in self.contest.tuning_keys(method, self.grid)], stop
        )
        runs.complete(self.final_keys(), stop)

    def winners(self) -> dict[str, Settings]:
        """Return each method's best settings; methods of which no run came to its end are missing."""
        found = {
            method: self.contest.best_settings(self.store, method, self.grid) for method in self.methods
        }
        return {method: settings for method, settings in found.items() if settings is not None}

    def final_keys(self) -> list[RunKey]:
        """Return the fresh runs of all winners."""
        return [
            key
            for method, settings in self.winners().items()
            for key in self.contest.final_keys(method, settings, self.seeds)
        ]

    def _do(self, key: RunKey, stop: threading.Event) -> Row:
        limit = self.contest.cut_limit(key, self.store)
        return self.workers.run(ContestRun(self.contest, key, limit), stop)

    def results(self) -> dict[str, list[Row]]:
        """Return the fresh runs of each method's winner that are in the store."""
        rows: dict[str, list[Row]] = {}
        for method, settings in self.winners().items():
            keys = self.contest.final_keys(method, settings, self.seeds)
            found = [self.store.get(key) for key in keys]
            rows[method] = [row for row in found if row is not None]
        return rows

    @property
    def benchmark_name(self) -> str:
        """Return which benchmark it is."""
        return self.contest.benchmark.name

    @property
    def epochs(self) -> int:
        """Return after how many epochs errors are measured."""
        return self.contest.epochs

    def tried(self, method: str) -> int:
        """Return how many settings are compared."""
        return len(settings_of(method, self.grid, self.benchmark_name))

    def cost(self, method: str) -> tuple[int, float]:
        """Return the samples learnt from, and the seconds spent, in tuning a method."""
        rows = [self.store.get(key) for key in self.contest.tuning_keys(method, self.grid)]
        found = [row for row in rows if row is not None]
        return sum(row.samples for row in found), sum(row.seconds for row in found)
