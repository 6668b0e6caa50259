"""What every command does with its result: files into a folder, JSON or a table to the terminal."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pesky.errors import InputError
from pesky.files import atomic_path, obstacle

__all__ = [
    "AsJson",
    "OutFolder",
    "print_json",
    "print_methods",
    "print_table",
    "print_written",
    "ready_folder",
    "write_json",
]

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on standard output, nothing else.")
]
# Text, not a Path: as a path, '' would be the current folder.
OutFolder = Annotated[
    str, typer.Option("--out", metavar="DIR", help="Folder for the files; made if missing.")
]

_HEADINGS = {
    "final_median_excess_loss": "final excess\nloss (median)",
    "mean_excess_loss": "excess loss (mean,\nwhole run)",
    "final_median_rate": "final rate\n(median)",
    "rejected_samples": "rejected\nsamples",
}
_ENDLESS = 10_000  # columns


def ready_folder(name: str, *files: str) -> Path:
    """Make a folder if need be and check that files, those named too, can be written into it.

    So that this is told before any work.
    """
    if not name:
        raise InputError("--out must name a folder; got '': write . for the current one")
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be made: {error.strerror}; name another") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--out {folder} is not writable; name another folder")
    for file in files:
        reason = obstacle(folder / file)
        if reason is not None:
            raise InputError(f"in --out {folder}, {file} cannot be written: {reason}")
    return folder


def _json_text(result: Mapping[str, Any]) -> str:
    return json.dumps(result, indent=2, allow_nan=False)


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write one JSON object."""
    with atomic_path(path) as temporary:
        temporary.write_text(_json_text(result) + "\n", encoding="utf-8")


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    print(_json_text(result))


def print_written(paths: Iterable[str]) -> None:
    """Say which files were written."""
    print("wrote " + ", ".join(paths))


def print_methods(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of `pesky.lab.comparison.summary`."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method", overflow="fold")
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right", min_width=len("1.234e-300"))
    for row in rows:
        cells = ("not finite" if row[key] is None else f"{row[key]:.4g}" for key in _HEADINGS)
        table.add_row(row["name"], *cells)
    print_table(table)


def print_table(table: Table) -> None:
    """Print a table, as wide as it is where it does not go to a terminal."""
    screen = Console()
    if not screen.is_terminal:
        screen.width = _ENDLESS  # names fold at the edge of a terminal; files and pipes have none
    screen.print(table, crop=False)
