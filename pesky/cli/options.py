"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from pesky.errors import InputError
from pesky.files import obstacle

__all__ = [
    "DEFAULT_STORE",
    "DEFAULT_TORCH_STORE",
    "DataFolder",
    "Export",
    "Jobs",
    "Load",
    "StoreFile",
    "check_export",
]

DEFAULT_STORE = Path("pesky-race.sqlite")
DEFAULT_TORCH_STORE = Path("pesky-torch.sqlite")

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder with the data; else PESKY_DATA or the cache."),
]
Export = Annotated[
    Path | None, typer.Option("--export", metavar="FILE", help="Also write the rows as CSV, sorted.")
]
Jobs = Annotated[int, typer.Option("--jobs", help="Runs at a time; 0: one a core.")]
Load = Annotated[
    Path | None, typer.Option("--load", metavar="FILE", help="First read rows that --export wrote.")
]
StoreFile = Annotated[Path, typer.Option("--store", metavar="FILE", help="Where pesky race keeps runs.")]


def check_export(export: Path | None) -> None:
    """Refuse a file that could not be written at the end."""
    reason = None if export is None else obstacle(export)
    if reason is not None:
        raise InputError(f"--export {export} cannot be written: {reason}")
