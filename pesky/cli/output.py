"""What every command does with its result: files into a folder, JSON or a table to the terminal."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pesky.cli.screen import print_table
from pesky.errors import InputError
from pesky.files import atomic_path, obstacle
from pesky.lab.tables.table import Table

__all__ = [
    "AsJson",
    "OutFolder",
    "print_json",
    "print_methods",
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
    lines = [
        [
            row["name"],
            *("not finite" if row[key] is None else f"{row[key]:.4g}" for key in _HEADINGS),
        ]
        for row in rows
    ]
    print_table(Table(("method", *_HEADINGS.values()), lines, title))
