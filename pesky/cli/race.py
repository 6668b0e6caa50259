"""``pesky race``: vSGD against its rivals, each tuned over the paper's grids."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from pesky.cli.output import AsJson, print_json, print_written, ready_folder, write_json
from pesky.cli.train import DataFolder
from pesky.errors import InputError, check_count
from pesky.lab.benchmarks import BENCHMARKS, METHODS
from pesky.lab.race import Contest, Grid, Interrupted, Progress, Race, Select, Store, listed_methods
from pesky.lab.race.grids import settings_of
from pesky.lab.race.table import Standing, standings

__all__ = ["race_command"]

DEFAULT_STORE = Path("pesky-race.sqlite")


def race_command(
    benchmarks: Annotated[
        list[str], typer.Argument(metavar="BENCHMARK...", help=f"Of {', '.join(BENCHMARKS)}.")
    ],
    methods: Annotated[
        str, typer.Option(help="With commas between; else all that the paper lists.")
    ] = "",
    grid: Annotated[
        Grid, typer.Option(help="Settings tried: the paper's grids, a coarse form, or its winners.")
    ] = "full",
    select: Annotated[
        Select,
        typer.Option(
            help="What settings are chosen by: the test set, as in the paper, or a "
            "tenth of the training set."
        ),
    ] = "test",
    seeds: Annotated[int, typer.Option(help="Fresh runs of each winner.")] = 10,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 6,
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0: one a core.")] = 0,
    store: Annotated[Path, typer.Option(metavar="FILE", help="Where runs are kept.")] = DEFAULT_STORE,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the rows as CSV, sorted.")
    ] = None,
    load: Annotated[
        Path | None, typer.Option(metavar="FILE", help="First read rows that --export wrote.")
    ] = None,
    data: DataFolder = None,
    as_json: AsJson = False,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Folder for race.json.")
    ] = None,
) -> None:
    """Tune the rivals, run the winners afresh, show the leaderboard; goes on where it was stopped."""
    check_count("--seeds", seeds)
    check_count("--epochs", epochs)
    check_count("--jobs", jobs, least=0)
    for name in benchmarks:
        if name not in BENCHMARKS:
            raise InputError(f"unknown benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    if export is not None and not export.parent.is_dir():
        raise InputError(f"the folder of --export {export} does not exist; make it or name another")
    chosen = {name: _methods(name, methods, grid) for name in benchmarks}
    folder = ready_folder(out) if out is not None else None
    contests = {
        name: Contest.on_published_data(BENCHMARKS[name], data, epochs=epochs, select=select)
        for name in chosen
    }
    tables: dict[str, list[Standing]] = {}
    with Store(store) as opened, _stopped_by_ctrl_c() as stop:
        if load is not None:
            opened.load(load)
        for name, contest in contests.items():
            race = Race(contest, opened, chosen[name], grid, seeds, jobs or None)
            try:
                with _live_view(race):
                    race.run(stop)
            except Interrupted:
                raise KeyboardInterrupt from None
            tables[name] = standings(race)
            if not as_json:
                _print_standings(name, tables[name])
        if export is not None:
            opened.export(export)
    result: dict[str, Any] = {
        "grid": grid,
        "select": select,
        "epochs": epochs,
        "benchmarks": {name: [row.numbers() for row in rows] for name, rows in tables.items()},
        "store": str(store),
    }
    if folder is not None:
        write_json(folder / "race.json", result)
    if as_json:
        print_json(result)
    else:
        print_written([str(path) for path in (store, export, folder and folder / "race.json") if path])


def _methods(benchmark: str, text: str, grid: Grid) -> tuple[str, ...]:
    """Return the methods asked for, if they are known and have settings in the grid."""
    asked = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
    chosen = asked or listed_methods(benchmark)
    for method in chosen:
        if method not in METHODS:
            raise InputError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
        settings_of(method, grid, benchmark)
    return chosen


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[threading.Event]:
    """Let the first Ctrl-C end the runs under way; a second one ends the program."""
    stop = threading.Event()

    def note(number: int, frame: Any) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _live_view(race: Race) -> Iterator[None]:
    """Show progress, time left and each method's best so far, if somebody can see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task(race.contest.benchmark.name)
    best: dict[str, float] = {}

    def view() -> Table:
        table = Table.grid()
        table.add_row(bar)
        table.add_row("best so far: " + ", ".join(f"{name} {error:.2f}" for name, error in best.items()))
        return table

    with Live(view(), console=console, transient=True, refresh_per_second=4) as live:

        def watch(progress: Progress) -> None:
            if progress.last is not None:
                key, row = progress.last
                if row.test is not None and row.test < best.get(key.method, float("inf")):
                    best[key.method] = row.test
            bar.update(task, completed=progress.done, total=progress.total)
            live.update(view())

        race.watch = watch
        yield


def _print_standings(benchmark: str, rows: list[Standing]) -> None:
    unit = "" if BENCHMARKS[benchmark].loss == "squared-error" else ", percent"
    table = Table(title=f"{benchmark}: error{unit}", title_justify="left", title_style="bold")
    for heading in ("method", "test", "train", "best setting", "tried", "tuning"):
        table.add_column(heading, justify="left" if heading in ("method", "best setting") else "right")
    for row in rows:
        settings = (
            "no setting finished"
            if row.settings is None
            else (
                " ".join(f"{name} {value}" for name, value in row.settings.items()) or "nothing to set"
            )
        )
        test, train = (_shown(cell) for cell in (row.test, row.train))
        table.add_row(
            row.method, test, train, settings, str(row.settings_tried), f"{row.tuning_seconds:.0f} s"
        )
    Console().print(table)


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    text = f"{cell.mean:.2f}±{cell.deviation:.2f}"
    return f"[bold]{text}[/bold]" if cell.bold else text
