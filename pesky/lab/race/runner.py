"""The runs of a race: which are needed, claimed and stored, in an order that does not matter."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from pesky.lab.race.contest import Contest, Interrupted
from pesky.lab.race.grids import Grid, Settings, settings_of
from pesky.lab.race.store import Row, RunKey, Store
from pesky.lab.race.workers import Threads, Workers

__all__ = ["Progress", "Race"]

_OTHERS_PAUSE = 0.5  # seconds between looks at what other processes have claimed


@dataclass
class Progress:
    """How far a race is, for whoever watches."""

    counted: set[RunKey] = field(default_factory=set)  # runs that are known to be needed
    done: int = 0  # of them
    last: tuple[RunKey, Row] | None = None

    @property
    def total(self) -> int:
        """Return how many runs are known to be needed."""
        return len(self.counted)


@dataclass
class Race:
    """All runs of one contest: the yardstick, then the grids, then fresh runs of the winners."""

    contest: Contest
    store: Store
    methods: tuple[str, ...]
    grid: Grid
    seeds: int
    workers: Workers = field(default_factory=Threads)
    watch: Callable[[Progress], None] = field(default=lambda progress: None)

    def run(self, stop: threading.Event | None = None) -> None:
        """Do whatever is not in the store yet. Can be stopped, or killed, and called again."""
        stop = stop or threading.Event()
        progress = Progress()
        self._complete(self.contest.yardstick_keys(), progress, stop)
        self._complete(
            [key for method in self.methods for key in self.contest.tuning_keys(method, self.grid)],
            progress,
            stop,
        )
        self._complete(self.final_keys(), progress, stop)

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

    def _complete(self, keys: Iterable[RunKey], progress: Progress, stop: threading.Event) -> None:
        """Return when every run is in the store, whoever did it."""
        wanted = [key for key in dict.fromkeys(keys) if key not in progress.counted]
        missing = [key for key in wanted if self.store.get(key) is None]
        progress.counted.update(wanted)
        progress.done += len(wanted) - len(missing)
        self.watch(progress)
        with ThreadPoolExecutor(self.workers.places) as pool:
            try:
                while missing and not stop.is_set():
                    missing = self._pass(pool, missing, progress, stop)
                    if missing:
                        stop.wait(_OTHERS_PAUSE)
            except BaseException:
                stop.set()
                raise
        if stop.is_set():
            raise Interrupted

    def _pass(
        self, pool: ThreadPoolExecutor, missing: list[RunKey], progress: Progress, stop: threading.Event
    ) -> list[RunKey]:
        """Do what can be claimed; return what others are still at."""
        futures: dict[Future[Row | None], RunKey] = {
            pool.submit(self._do, key, stop): key for key in missing
        }
        left = []
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    row = future.result()
                    if row is None:
                        left.append(futures[future])
                    else:
                        progress.done += 1
                        progress.last = (futures[future], row)
                        self.watch(progress)
        except BaseException:
            stop.set()
            for future in pending:
                future.cancel()
            raise
        return left

    def _do(self, key: RunKey, stop: threading.Event) -> Row | None:
        known = self.store.get(key)
        if known is not None:
            return known
        if stop.is_set():
            raise Interrupted
        if not self.store.claim(key):
            return self.store.get(key)
        try:
            limit = self.contest.cut_limit(key, self.store)
            row = self.workers.run(self.contest, key, limit, stop)
        except BaseException:
            self.store.release(key)
            raise
        self.store.finish(key, row)
        return row

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
