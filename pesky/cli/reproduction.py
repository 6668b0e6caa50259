"""``pesky reproduction``: the page that puts our numbers beside the paper's."""

from typing import Annotated

import typer

from pesky.cli.output import print_written, ready_folder
from pesky.cli.rows import RowFiles, RowStore, rows_from
from pesky.files import atomic_path

__all__ = ["reproduction_command"]

_PAGE = "reproduction.md"


def reproduction_command(
    files: RowFiles = [],  # noqa: B006 (Typer makes it anew)
    store: RowStore = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help=f"Folder for {_PAGE}; else it is printed."),
    ] = None,
) -> None:
    """Make the page with the paper's tables, ours beside its own, as Markdown."""
    from pesky.lab.pages.reproduction import reproduction_page

    folder = ready_folder(out, _PAGE) if out is not None else None
    with rows_from(files, store) as rows:
        command = " ".join(["pesky reproduction", *(str(path) for path in rows.files)])
        page = reproduction_page(rows.store, command)
    if folder is None:
        print(page, end="")
        return
    with atomic_path(folder / _PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print_written([str(folder / _PAGE)])
