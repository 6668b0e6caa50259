"""What every command does with its result: files into a folder, JSON or a table to the terminal."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pesky.errors import InputError

__all__ = [
    "AsJson",
    "OutFolder",
    "print_json",
    "print_methods",
    "ready_folder",
    "screen",
    "write_text",
]

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on standard output, nothing else.")
]
OutFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for the files; made if missing.")
]

screen = Console()


def ready_folder(folder: Path) -> Path:
    """Make `folder` if need be and check that files can be written into it, before any work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be made: {error.strerror}; name another") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--out {folder} is not writable; name another folder")
    return folder


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is either whole or not there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(result, indent=2, allow_nan=False))


def print_methods(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of `pesky.lab.comparison.summary`."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    headings = {
        "final_median_excess_loss": "final excess loss (median)",
        "mean_excess_loss": "excess loss (mean, whole run)",
        "final_median_rate": "final rate (median)",
        "rejected_samples": "rejected samples",
    }
    for heading in headings.values():
        table.add_column(heading, justify="right")
    for row in rows:
        cells = ("infinite" if row[key] is None else f"{row[key]:.4g}" for key in headings)
        table.add_row(row["name"], *cells)
    screen.print(table)
