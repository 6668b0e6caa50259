"""``pesky race``: vSGD against its rivals, each tuned over the paper's grids."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pesky.cli.options import DEFAULT_STORE, DataFolder, Export, Jobs, Load, StoreFile, check_export
from pesky.cli.output import AsJson, print_json, print_written, ready_folder, write_json
from pesky.cli.own_files import BENCHMARK_HELP, Layers, check_benchmark, own_layers
from pesky.errors import InputError, check_count
from pesky.interrupts import stopped_by_ctrl_c
from pesky.lab.benchmarks import BENCHMARKS, METHODS
from pesky.lab.own_data import is_own_file
from pesky.lab.race.grids import Grid, listed_methods, settings_of
from pesky.lab.race.tuning import Select

if TYPE_CHECKING:
    from pesky.lab.race.contest import Contest, ContestRun
    from pesky.lab.race.rows import Row
    from pesky.lab.runs.workers import Workers

__all__ = ["race_command"]


def race_command(
    benchmarks: Annotated[
        list[str],
        typer.Argument(metavar="BENCHMARK...", help=BENCHMARK_HELP),
    ],
    layers: Layers = None,
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
    jobs: Jobs = 0,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run on the Dask cluster of this scheduler: tcp://host:8786."
        ),
    ] = None,
    store: StoreFile = DEFAULT_STORE,
    export: Export = None,
    load: Load = None,
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
    chosen = _by_name(benchmarks)
    sizes = own_layers(layers, benchmarks)
    competing = {name: _methods(name, methods, grid) for name in chosen}
    check_export(export)
    folder = ready_folder(out, "race.json") if out is not None else None

    from pesky.cli.leaderboard import live_view, print_standings
    from pesky.lab.race.rows import Store
    from pesky.lab.race.runner import Race
    from pesky.lab.race.standings import Standing, standings

    tables: dict[str, list[Standing]] = {}
    with _workers(jobs, cluster) as workers:
        contests = {
            name: _contest(given, sizes, data, epochs=epochs, select=select)
            for name, given in chosen.items()
        }
        with Store(store) as opened:
            if load is not None:
                opened.load(load)
            for name, contest in contests.items():
                race = Race(contest, opened, competing[name], grid, seeds, workers)
                with stopped_by_ctrl_c() as stop, live_view(race):
                    race.run(stop)
                tables[name] = standings(race)
                if not as_json:
                    print_standings(contest.benchmark, tables[name])
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


def _by_name(given: list[str]) -> dict[str, str]:
    """Return what was given by the name it has in tables and rows: of a file, without its folder."""
    chosen: dict[str, str] = {}
    for text in given:
        check_benchmark(text)
        name = Path(text).name
        if chosen.setdefault(name, text) != text:
            raise InputError(f"two files are called {name}: {chosen[name]} and {text}; rename one")
    return chosen


def _methods(benchmark: str, text: str, grid: Grid) -> tuple[str, ...]:
    """Return the methods asked for, if they are known and have settings in the grid."""
    asked = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
    chosen = asked or listed_methods(benchmark)
    for method in chosen:
        if method not in METHODS:
            raise InputError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
        settings_of(method, grid, benchmark)
    return chosen


def _workers(jobs: int, cluster: str | None) -> "AbstractContextManager[Workers[ContestRun, Row]]":
    if cluster is None:
        from pesky.lab.runs.workers import Threads

        return nullcontext(Threads(jobs or None))
    if jobs:
        raise InputError(f"--jobs {jobs} is for runs here; the workers of --cluster have their own")
    from pesky.lab.race.cluster import connected

    return connected(cluster)


def _contest(
    given: str, layers: tuple[int, ...], data: Path | None, *, epochs: int, select: Select
) -> "Contest":
    from pesky.lab.own_data import own_benchmark
    from pesky.lab.race.contest import Contest

    if is_own_file(given):
        return Contest.on_own_data(*own_benchmark(Path(given), layers), epochs=epochs, select=select)
    return Contest.on_published_data(BENCHMARKS[given], data, epochs=epochs, select=select)
