"""How a race is shown: while it runs, and when it is over."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pesky.cli.progress import live_bar
from pesky.lab.benchmarks import Benchmark
from pesky.lab.race.grids import settings_shown
from pesky.lab.race.runner import Progress, Race
from pesky.lab.race.standings import MeanError, Standing

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
    table = Table(
        title=f"{escape(benchmark.name)}: error{unit}", title_justify="left", title_style="bold"
    )
    for heading in ("method", "test", "train", "best setting", "tried", "tuning"):
        table.add_column(heading, justify="left" if heading in ("method", "best setting") else "right")
    for row in rows:
        test, train = _shown(row.test), _shown(row.train)
        settings, seconds = settings_shown(row.settings), f"{row.tuning_seconds:.0f} s"
        table.add_row(row.method, test, train, settings, str(row.settings_tried), seconds)
    Console().print(table)


def _shown(cell: MeanError | None) -> str:
    if cell is None:
        return "-"
    text = f"{cell.mean:.2f}±{cell.deviation:.2f}"
    return f"[bold]{text}[/bold]" if cell.bold else text
