"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DEFAULT_STORE", "DataFolder", "Jobs", "StoreFile"]

DEFAULT_STORE = Path("pesky-race.sqlite")

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder with the data; else PESKY_DATA or the cache."),
]
Jobs = Annotated[int, typer.Option("--jobs", help="Runs at a time; 0: one a core.")]
StoreFile = Annotated[Path, typer.Option("--store", metavar="FILE", help="Where pesky race keeps runs.")]
