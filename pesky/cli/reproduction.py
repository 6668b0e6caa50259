"""``pesky reproduction``: the page that puts our numbers beside the paper's."""

from pathlib import Path
from typing import Annotated

import typer

from pesky.cli.options import DEFAULT_STORE, StoreFile
from pesky.cli.output import print_written, ready_folder
from pesky.files import atomic_path
from pesky.lab.race.store import Store

__all__ = ["reproduction_command"]


def reproduction_command(
    rows: Annotated[
        list[Path],
        typer.Argument(metavar="[FILE]...", help="Rows that pesky race exported; read first."),
    ] = [],  # noqa: B006 (Typer makes it anew)
    store: StoreFile = DEFAULT_STORE,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder for reproduction.md; else it is printed."),
    ] = None,
) -> None:
    """Make the page with the paper's tables, ours beside its own, as Markdown."""
    from pesky.lab.reproduction import reproduction_page

    folder = ready_folder(out) if out is not None else None
    command = " ".join(["pesky reproduction", *(str(path) for path in rows)])
    with Store(store) as opened:
        for path in rows:
            opened.load(path)
        page = reproduction_page(opened, command)
    if folder is None:
        print(page, end="")
        return
    with atomic_path(folder / "reproduction.md") as temporary:
        temporary.write_text(page, encoding="utf-8")
    print_written([str(folder / "reproduction.md")])
