"""``pesky bench``: how fast it is here, as ratios."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pesky.cli.output import AsJson, print_json, print_written, ready_folder, write_json
from pesky.cli.screen import print_table
from pesky.errors import check_count, check_number
from pesky.lab.bench import tables
from pesky.lab.tables.table import Table

__all__ = ["app"]

_ONLINE, _TORCH = "bench-online.json", "bench-torch.json"

app = typer.Typer(no_args_is_help=True, help="Measure speed on this machine, as ratios within one run.")


@app.command("online")
def online_command(
    repeats: Annotated[int, typer.Option(help="Timings of each kind; the best counts.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of one timing.")] = 0.3,
    as_json: AsJson = False,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help=f"Folder for {_ONLINE}.")
    ] = None,
) -> None:
    """Measure the online engine: against PyTorch, plain SGD, the memory's bandwidth and two threads."""
    from pesky.lab.bench.online import bench_online

    check_count("--repeats", repeats)
    check_number("--seconds", seconds, above=0)
    folder = ready_folder(out, _ONLINE) if out is not None else None
    with Console(stderr=True).status("measuring") as status:
        result = bench_online(
            repeats=repeats, seconds=seconds, say=lambda text: status.update(f"measuring {text}")
        )
    _finish(result, folder, _ONLINE, as_json, tables.online_tables)


@app.command("torch")
def torch_command(
    repeats: Annotated[
        int | None,
        typer.Option(help="Timings of each kind; the median counts. Else 5, or 15 if --thorough."),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Also more parameters, two threads and BackPACK."),
    ] = False,
    as_json: AsJson = False,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help=f"Folder for {_TORCH}.")
    ] = None,
) -> None:
    """Measure the PyTorch optimizer: its update, bbprop and whole steps, beside fused Adam's."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # torch's profiler would log, if not told before
    from pesky.lab.bench.memory import WIDTHS, bench_memory
    from pesky.lab.bench.models import bench_models
    from pesky.lab.bench.update import SIZES, THREADS, bench_update

    times = check_count("--repeats", (15 if thorough else 5) if repeats is None else repeats)
    threads = THREADS if thorough else THREADS[:1]
    folder = ready_folder(out, _TORCH) if out is not None else None
    with Console(stderr=True).status("measuring") as status:

        def say(text: str) -> None:
            status.update(f"measuring {text}")

        result = {
            "update": bench_update(
                repeats=times, sizes=SIZES if thorough else SIZES[:1], threads=threads, say=say
            ),
            "models": bench_models(repeats=times, threads=threads, with_backpack=thorough, say=say),
            "memory": [
                row
                for width in (WIDTHS if thorough else WIDTHS[:1])
                for row in bench_memory(width=width, say=say)
            ],
        }
    _finish(result, folder, _TORCH, as_json, tables.torch_tables)


def _finish(
    result: dict[str, Any],
    folder: Path | None,
    name: str,
    as_json: bool,
    tables_of: Callable[[dict[str, Any]], Iterable[Table]],
) -> None:
    """Write and print what was measured."""
    files = []
    if folder is not None:
        write_json(folder / name, result)
        files = [str(folder / name)]
    if as_json:
        print_json({**result, "files": files})
        return
    for table in tables_of(result):
        print_table(table)
    if files:
        print_written(files)
