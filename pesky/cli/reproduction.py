"""``pesky reproduction``: the page that puts our numbers beside the paper's."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pesky.cli.options import DEFAULT_STORE, StoreFile
from pesky.cli.output import print_written, ready_folder
from pesky.errors import InputError
from pesky.files import atomic_path
from pesky.lab.race.store import Store
from pesky.lab.run_store import ForeignRowsError

__all__ = ["reproduction_command"]

_PAGE = "reproduction.md"


def reproduction_command(
    rows: Annotated[
        list[Path],
        typer.Argument(metavar="[FILE]...", help="Rows that pesky race exported; read first."),
    ] = [],  # noqa: B006 (Typer makes it anew)
    store: StoreFile = DEFAULT_STORE,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help=f"Folder for {_PAGE}; else it is printed."),
    ] = None,
) -> None:
    """Make the page with the paper's tables, ours beside its own, as Markdown."""
    from pesky.lab.reproduction import reproduction_page

    folder = ready_folder(out, _PAGE) if out is not None else None
    with Store(store) as opened:
        used = _load(opened, rows)
        command = " ".join(["pesky reproduction", *(str(path) for path in used)])
        page = reproduction_page(opened, command)
    if folder is None:
        print(page, end="")
        return
    with atomic_path(folder / _PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print_written([str(folder / _PAGE)])


def _load(store: Store, paths: Sequence[Path]) -> list[Path]:
    """Read rows; pass over files that hold other things, as `results/*.csv` does, and say so."""
    used: list[Path] = []
    skipped: dict[Path, str] = {}
    for path in paths:
        try:
            store.load(path)
        except ForeignRowsError as error:
            skipped[path] = error.reason
        else:
            used.append(path)
    if skipped and not used:
        reasons = ", ".join(f"{path} ({reason})" for path, reason in skipped.items())
        raise InputError(f"no file holds rows of pesky race: {reasons}")
    for path, reason in skipped.items():
        print(f"pesky: {path} is skipped: {reason}", file=sys.stderr)
    return used
