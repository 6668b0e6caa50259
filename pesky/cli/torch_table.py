"""``pesky torch-table``: VSGD against today's optimizers in PyTorch, and the page that shows it."""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.markup import escape

from pesky.cli.options import DEFAULT_TORCH_STORE, DataFolder, Export, Jobs, Load, check_export
from pesky.cli.output import AsJson, print_json, print_written, ready_folder
from pesky.cli.progress import live_bar
from pesky.cli.screen import print_table
from pesky.errors import InputError, check_count
from pesky.files import atomic_path
from pesky.interrupts import stopped_by_ctrl_c
from pesky.lab.tables.table import Table

if TYPE_CHECKING:
    from pesky.lab.runs.completing import Progress
    from pesky.lab.torch_table.contestants import Contestant
    from pesky.lab.torch_table.rows import Row, RunKey, Store
    from pesky.lab.torch_table.table import Standing, TorchTable

__all__ = ["torch_table_command"]

_DEFAULT_SEEDS = 3
_PAGE = "torch.md"
_FIGURES = "figures"  # folder beside the page

Named = TypeVar("Named")


def torch_table_command(
    tasks: Annotated[
        str,
        typer.Option(help="With commas between; else the development split, or the ten of an ablation."),
    ] = "",
    test_split: Annotated[
        bool, typer.Option("--test-split", help="The test split: ranks and counts are all it shows.")
    ] = False,
    contestants: Annotated[
        str, typer.Option(help="With commas between; else all; of an ablation, its variants.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each contestant on each task.")] = _DEFAULT_SEEDS,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the steps; rows are kept apart.")
    ] = False,
    ablation: Annotated[
        bool,
        typer.Option("--ablation", help="VSGD against itself without some of its parts."),
    ] = False,
    jobs: Jobs = 0,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Only show what has been run already.")
    ] = False,
    store: Annotated[
        Path, typer.Option(metavar="FILE", help="Where runs are kept.")
    ] = DEFAULT_TORCH_STORE,
    export: Export = None,
    load: Load = None,
    data: DataFolder = None,
    as_json: AsJson = False,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help=f"Folder for {_PAGE}.")] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help=f"Also draw the curves, into {_FIGURES} of --out.")
    ] = False,
) -> None:
    """Run VSGD and its rivals on PyTorch tasks, untuned and tuned; goes on where it was stopped."""
    check_count("--seeds", seeds)
    check_count("--jobs", jobs, least=0)
    if figures and out is None:
        raise InputError("--figures needs a folder; add --out DIR")
    check_export(export)
    if importlib.util.find_spec("torch") is None:
        raise InputError("torch-table needs PyTorch; run: pip install 'pesky[torch]'")
    from pesky.lab.torch_table.rows import Store

    if test_split and (tasks or ablation):
        raise InputError("--test-split is for all of its tasks; leave out --tasks and --ablation")
    table, shown = _tables(tasks, test_split, contestants, seeds, quick, ablation)
    folder = ready_folder(out, _PAGE) if out is not None else None
    pictures = ready_folder(str(folder / _FIGURES)) if folder is not None and figures else None
    written: list[Path] = []
    with Store(store) as opened:
        if load is not None:
            opened.load(load)
        if not no_run:
            _run(table, opened, jobs, data)
        if export is not None:
            opened.export(export)
            written.append(export)
        command = _command(
            tasks=tasks,
            test_split=test_split,
            contestants=contestants,
            seeds=seeds,
            quick=quick,
            ablation=ablation,
            load=load,
            no_run=no_run,
        )
        if folder is not None:
            written += _write(shown, opened, folder, command, pictures)
        standings = _shown_standings(table, opened)
    if as_json:
        print_json(
            {
                "quick": quick,
                "seeds": seeds,
                "tasks": {name: [one.numbers() for one in rows] for name, rows in standings.items()},
                "store": str(store),
                "files": [str(path) for path in written],
            }
        )
        return
    for name, rows in standings.items():
        _print_standings(name, rows)
    print_written([str(path) for path in (store, *written)])


def _shown_standings(table: "TorchTable", store: "Store") -> "dict[str, list[Standing]]":
    """Return the numbers that may be seen; those of the test split may not."""
    hidden = [task.name for task in table.tasks if task.split == "test"]
    if hidden:
        print(
            f"numbers of the test split are not shown ({', '.join(hidden)}); its ranks are on the page "
            "that --out writes",
            file=sys.stderr,
        )
    standings = table.standings(store)
    return {name: rows for name, rows in standings.items() if name not in hidden}


def _tables(
    tasks: str, test_split: bool, contestants: str, seeds: int, quick: bool, ablation: bool
) -> "tuple[TorchTable, TorchTable]":
    """Return the table to run, and the one that the page shows: all tasks, unless some are named."""
    from pesky.lab.torch_table.ablation import ABLATION_TASKS
    from pesky.lab.torch_table.contestants import CONTESTANTS, VARIANTS
    from pesky.lab.torch_table.table import TorchTable
    from pesky.lab.torch_table.tasks import TASKS

    known = {"vsgd": CONTESTANTS["vsgd"], **VARIANTS} if ablation else CONTESTANTS
    split = "test" if test_split else "development"
    usual = ABLATION_TASKS if ablation else [task.name for task in TASKS.values() if task.split == split]
    table = TorchTable(
        tuple(_chosen("task", tasks or ",".join(usual), TASKS)),
        tuple(_chosen("contestant", contestants, known)),
        seeds,
        quick,
    )
    if ablation:
        return table, replace(
            table, tasks=tuple(TASKS.values()), contestants=tuple(CONTESTANTS.values())
        )
    return table, table if tasks else replace(table, tasks=tuple(TASKS.values()))


def _chosen(kind: str, text: str, known: Mapping[str, Named]) -> list[Named]:
    """Return what was named, in the table's order; all if nothing was."""
    asked = [part.strip() for part in text.split(",")] if text else list(known)
    for name in asked:
        if name not in known:
            raise InputError(f"unknown {kind} {name!r}; there are {', '.join(known)}")
    return [one for name, one in known.items() if name in asked]


def _command(
    *,
    tasks: str,
    test_split: bool,
    contestants: str,
    seeds: int,
    quick: bool,
    ablation: bool,
    load: Path | None,
    no_run: bool,
) -> str:
    """Return the line that makes the page again."""
    words = ["pesky torch-table", *["--ablation"] * ablation, *["--test-split"] * test_split]
    words += [f"--tasks {tasks}"] * bool(tasks) + [f"--contestants {contestants}"] * bool(contestants)
    words += [f"--seeds {seeds}"] * (seeds != _DEFAULT_SEEDS) + ["--quick"] * quick
    words += [f"--load {load}"] * (load is not None) + ["--no-run"] * no_run
    return " ".join([*words, "--out docs"])


def _run(table: "TorchTable", store: "Store", jobs: int, data: Path | None) -> None:
    """Do the runs that are missing, and say how to go on if stopped."""
    from pesky.lab.runs.completing import Interrupted
    from pesky.lab.torch_table.workers import workers

    runnable = replace(table, contestants=tuple(_installed(table.contestants)))
    with stopped_by_ctrl_c() as stop, workers(jobs) as places, _watching(runnable):
        try:
            runnable.run(store, places, data, stop)
        except Interrupted:
            print("stopped; the same command goes on from here", file=sys.stderr)
            raise


def _installed(contestants: "tuple[Contestant, ...]") -> "Iterator[Contestant]":
    from pesky.lab.torch_table.contestants import METHODS

    for contestant in contestants:
        method = METHODS[contestant.method]
        if method.is_installed:
            yield contestant
        else:
            print(
                f"{contestant.name} is skipped: it needs {method.distribution}; "
                f"run: pip install {method.distribution}",
                file=sys.stderr,
            )


@contextmanager
def _watching(table: "TorchTable") -> Iterator[None]:
    """Show progress as a bar; in a log file, as a line a run."""
    last = ""

    def line() -> str:
        return escape(last)

    with live_bar("torch-table", line) as show:

        def watch(progress: "Progress[RunKey, Row]") -> None:
            nonlocal last
            before, last = last, _last(progress)
            if show is not None:
                show(progress.done, progress.total)
            elif last != before:
                print(f"{progress.done} of {progress.total}: {last}", file=sys.stderr, flush=True)

        table.watch = watch
        yield


def _last(progress: "Progress[RunKey, Row]") -> str:
    if progress.last is None:
        return ""
    from pesky.lab.torch_table.splits import split_of

    key, row = progress.last
    what = f"{key.task} {key.method} {key.settings} seed {key.seed}"
    if row.status == "too slow":
        return f"{what}: too slow, stopped at step {row.steps_done}, {row.seconds:.0f} s"
    if split_of(key.task) == "test":
        return f"{what}: {row.status}, {row.seconds:.0f} s"
    if row.train is None or row.test is None:
        return f"{what}: diverged at step {row.diverged_at}, {row.seconds:.0f} s"
    return f"{what}: loss {row.train:.4g}, test {row.test:.4g}, {row.seconds:.0f} s"


def _write(
    table: "TorchTable", store: "Store", folder: Path, command: str, pictures: Path | None
) -> list[Path]:
    """Write the page, and pictures if there is a folder for them."""
    from pesky.lab.torch_table.page import torch_page

    written: list[Path] = []
    places: list[tuple[str, PurePosixPath]] = []
    if pictures is not None:
        written, places = _draw(table, store, pictures)
    page = torch_page(table, store, command + " --figures" * (pictures is not None), places)
    with atomic_path(folder / _PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return [folder / _PAGE, *written]


def _draw(
    table: "TorchTable", store: "Store", folder: Path
) -> tuple[list[Path], list[tuple[str, PurePosixPath]]]:
    """Draw what there is; return the files, and each picture's place as the page names it."""
    from pesky.lab.torch_table.drawing import fan, losses

    drawn = {"fan": fan(table, store)}
    development = [rows for rows in table.rows(store) if rows.task.split == "development"]
    drawn |= {rows.task.name: losses(table, rows) for rows in development}
    files: list[Path] = []
    places: list[tuple[str, PurePosixPath]] = []
    for name, picture in drawn.items():
        if picture is not None:
            files += picture.save(folder)
            places.append((name, PurePosixPath(_FIGURES) / f"{picture.name}.png"))
    return files, places


def _print_standings(task: str, rows: "list[Standing]") -> None:
    lines = [
        [
            row.contestant.name,
            str(row.number("train") or "-"),
            str(row.number("test") or "-"),
            "-" if row.seconds is None else f"{row.seconds:.3g}",
            f"{len(row.runs)} of {row.wanted}"
            + (f", {len(row.diverged)} diverged" if row.diverged else "")
            + (f", {len(row.too_slow)} too slow" if row.too_slow else ""),
            row.setting or "-",
        ]
        for row in rows
    ]
    header = ("contestant", "training loss", "test", "seconds", "runs", "setting")
    print_table(Table(header, lines, task, words=(0, 5)))
