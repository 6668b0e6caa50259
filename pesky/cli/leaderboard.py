"""How a race is shown: while it runs, and when it is over."""

from collections.abc import Iterator
from contextlib import contextmanager

from pesky.cli.progress import live_bar
from pesky.cli.screen import print_table
from pesky.lab.benchmarks import Benchmark
from pesky.lab.race.runner import Progress, Race
from pesky.lab.race.standings import MeanError, Standing
from pesky.lab.runs.settings import settings_shown
from pesky.lab.tables.table import Cell, Table

__all__ = ["live_view", "print_standings"]


@contextmanager
def live_view(race: Race) -> Iterator[None]:
    """Show progress, time left and each method's best so far, if somebody can see it."""
    best: dict[str, float] = {}

    def line() -> str:
        return "best so far: " + ", ".join(f"{name} {error:.2f}" for name, error in best.items())

    with live_bar(race.benchmark_name, line) as show:
        if show is None:
            yield
            return

        def watch(progress: Progress) -> None:
            if progress.last is not None:
                key, row = progress.last
                if row.test is not None and row.test < best.get(key.method, float("inf")):
                    best[key.method] = row.test
            show(progress.done, progress.total)

        race.watch = watch
        yield


def print_standings(benchmark: Benchmark, rows: list[Standing]) -> None:
    """Print the leaderboard of a race that is over."""
    unit = ", percent" if benchmark.loss == "cross-entropy" else ""
    lines: list[list[Cell | str]] = [
        [
            row.method,
            _shown(row.test),
            _shown(row.train),
            settings_shown(row.settings),
            str(row.settings_tried),
            f"{row.tuning_seconds:.0f} s",
        ]
        for row in rows
    ]
    header = ("method", "test", "train", "best setting", "tried", "tuning")
    print_table(Table(header, lines, f"{benchmark.name}: error{unit}", words=(0, 3)))


def _shown(error: MeanError | None) -> Cell:
    return Cell("-") if error is None else Cell(f"{error.mean:.2f}±{error.deviation:.2f}", error.bold)
