"""``pesky report``: everything that a store holds, as one page."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pesky.cli.figures import DEFAULT_FOLDER
from pesky.cli.options import DEFAULT_STORE, DEFAULT_TORCH_STORE, StoreFile
from pesky.cli.output import AsJson, OutFolder, print_json, print_written, ready_folder
from pesky.errors import InputError
from pesky.files import atomic_path
from pesky.lab.race.store import Store

__all__ = ["report_command"]

_PAGE = "report.html"


def report_command(
    store: StoreFile = DEFAULT_STORE,
    figures: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with what pesky figure drew.")
    ] = Path(DEFAULT_FOLDER),
    torch_store: Annotated[
        Path, typer.Option(metavar="FILE", help="Where pesky torch-table keeps its runs, if it did any.")
    ] = DEFAULT_TORCH_STORE,
    out: OutFolder = ".",
    as_json: AsJson = False,
) -> None:
    """Write report.html: the claim in numbers, tables, and plots that tell their settings."""
    from pesky.lab.report import report_page

    folder = ready_folder(out, _PAGE)
    if not store.is_file():
        raise InputError(f"there is no store {store}; run: pesky race digits --store {store}")
    with Store(store) as opened:
        page = report_page(
            opened,
            figures if figures.is_dir() else None,
            torch_store if torch_store.is_file() and find_spec("torch") else None,
        )
    path = folder / _PAGE
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    if as_json:
        print_json({"files": [str(path)]})
    else:
        print_written([str(path)])
