"""What a store holds of a benchmark, whichever races brought it there."""

from collections import Counter, defaultdict
from typing import Any

from pesky.lab import paper
from pesky.lab.benchmarks import BENCHMARKS, METHODS
from pesky.lab.race.contest import protocol_of
from pesky.lab.race.grids import settings_of
from pesky.lab.race.rows import Row, RunKey, Store
from pesky.lab.race.tuning import FINAL_SEEDS_FROM, Setting, winner
from pesky.lab.runs.settings import Settings, settings_text
from pesky.online import NUMERICS_VERSION

__all__ = ["Recorded", "own_benchmarks"]

# The paper's protocol: tuned on the test set, trained on all data, for as long.
_PAPERS: dict[str, Any] = {"epochs": paper.EPOCHS, "split": "full", "numerics": NUMERICS_VERSION}


def _rows(store: Store, **which: str) -> list[tuple[RunKey, Row]]:
    rows = store.rows(**which, **_PAPERS)
    return [(key, row) for key, row in rows if key.protocol == protocol_of(key.method)]


class Recorded:
    """The rows of one benchmark under the paper's protocol."""

    epochs = paper.EPOCHS

    def __init__(self, store: Store, benchmark: str, **which: str) -> None:
        """Read them; `which` are further parts of their keys."""
        self.benchmark_name = benchmark
        rows = _rows(store, benchmark=benchmark, **which)
        self.loss = next((key.loss for key, _ in rows), "")
        tuning: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self._final: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for key, row in rows:
            runs = self._final if key.seed >= FINAL_SEEDS_FROM else tuning
            runs[key.method, key.settings].append(row)
        self.settings = [
            Setting(method, settings, tuple(tuning[method, settings_text(settings)]))
            for method in METHODS
            for settings in settings_of(method, "full", benchmark)
            if (method, settings_text(settings)) in tuning
        ]

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods of which there is any run."""
        return tuple(dict.fromkeys(setting.method for setting in self.settings))

    def winner(self, method: str) -> Setting | None:
        """Return the best setting."""
        return winner(one for one in self.settings if one.method == method)

    def winners(self) -> dict[str, Settings]:
        """Return each method's best settings."""
        found = {method: self.winner(method) for method in self.methods}
        return {method: one.settings for method, one in found.items() if one is not None}

    def results(self) -> dict[str, list[Row]]:
        """Return the fresh runs of each method's winner."""
        return {
            method: self._final[method, settings_text(settings)]
            for method, settings in self.winners().items()
            if (method, settings_text(settings)) in self._final
        }

    def tried(self, method: str) -> int:
        """Return how many settings were compared."""
        return sum(setting.method == method for setting in self.settings)

    def cost(self, method: str) -> tuple[int, float]:
        """Return samples and seconds spent in comparing them."""
        runs = [run for one in self.settings if one.method == method for run in one.runs]
        return sum(run.samples for run in runs), sum(run.seconds for run in runs)


def own_benchmarks(store: Store) -> dict[str, Recorded]:
    """Return what a store holds of benchmarks that are not built in, under names that tell them apart.

    The file's name and the layers; where other data has the same, also a part of its checksum.
    """
    kinds = dict.fromkeys(
        (key.benchmark, key.layers, key.loss, key.data)
        for key, _ in _rows(store)
        if key.benchmark not in BENCHMARKS
    )
    alike = Counter((name, layers) for name, layers, _, _ in kinds)
    return {
        f"{name} {layers}" + (f" {loss} {data[:6]}" if alike[name, layers] > 1 else ""): Recorded(
            store, name, layers=layers, loss=loss, data=data
        )
        for name, layers, loss, data in kinds
    }
