"""``pesky report``: everything that a store or files of rows hold, as one page."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pesky.cli.figures import DEFAULT_FOLDER
from pesky.cli.options import DEFAULT_STORE, DEFAULT_TORCH_STORE
from pesky.cli.output import AsJson, OutFolder, print_json, print_written, ready_folder
from pesky.cli.rows import RowFiles, Rows, RowStore, rows_from
from pesky.errors import InputError
from pesky.files import atomic_path

__all__ = ["report_command"]

_PAGE = "report.html"


def report_command(
    files: RowFiles = [],  # noqa: B006 (Typer makes it anew)
    store: RowStore = None,
    figures: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with what pesky figure drew.")
    ] = Path(DEFAULT_FOLDER),
    torch_store: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where pesky torch-table keeps its runs, if it did any.",
            show_default=str(DEFAULT_TORCH_STORE),
        ),
    ] = None,
    out: OutFolder = ".",
    as_json: AsJson = False,
) -> None:
    """Write report.html: the claim in numbers, tables, and plots that tell their settings."""
    from pesky.lab.pages.report import report_page

    folder = ready_folder(out, _PAGE)
    if not files and not (store or DEFAULT_STORE).is_file():
        raise InputError(
            f"there is no store {store or DEFAULT_STORE}; run: pesky race digits --store "
            f"{store or DEFAULT_STORE}, or name files of rows, such as results/*.csv"
        )
    with rows_from(files, store, with_torch=True) as rows:
        page = report_page(
            rows.store,
            figures if figures.is_dir() else None,
            _torch_store(torch_store, rows),
            rows.source,
        )
    path = folder / _PAGE
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    if as_json:
        print_json({"files": [str(path)]})
    else:
        print_written([str(path)])


def _torch_store(named: Path | None, rows: Rows) -> Path | None:
    """Return the store of the PyTorch table to show: the one named, that of the files, or the usual."""
    usual = None if rows.files else DEFAULT_TORCH_STORE
    chosen = named or rows.torch_store or usual
    if chosen is None or not chosen.is_file():
        return None
    if find_spec("torch") is None:
        print("pesky: the PyTorch table is left out: showing it needs PyTorch", file=sys.stderr)
        return None
    return chosen
