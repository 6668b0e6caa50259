"""Rows to show: from CSV files, such as the committed ones, or from the store of a race."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from pesky.cli.options import DEFAULT_STORE
from pesky.errors import InputError
from pesky.lab.race.rows import Store
from pesky.lab.runs.layout import ForeignRowsError
from pesky.lab.torch_table.rows import Store as TorchStore

__all__ = ["RowFiles", "RowStore", "Rows", "rows_from"]

RowFiles = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Rows that --export wrote, as CSV; else those of a store."),
]
RowStore = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FILE",
        help="Where pesky race keeps runs; files named are read into it.",
        show_default=str(DEFAULT_STORE),
    ),
]


@dataclass(frozen=True)
class Rows:
    """What is there to be shown: a race's store, and perhaps one of ``pesky torch-table``."""

    store: Store
    torch_store: Path | None  # if any file held its rows
    files: tuple[Path, ...]  # that rows of either were read from

    @property
    def source(self) -> str:
        """Return where the rows are from, in words."""
        return ", ".join(path.name for path in self.files) or self.store.path.name


@contextmanager
def rows_from(files: Sequence[Path], store: Path | None, *, with_torch: bool = False) -> Iterator[Rows]:
    """Yield the rows of `files`, or else of the store; files without a store leave nothing behind.

    Files that hold other things, as ``results/*.csv`` may, are passed over, and that is said. With
    `with_torch`, those of ``pesky torch-table`` count as well.
    """
    if not files:
        with Store(store or DEFAULT_STORE) as opened:
            yield Rows(opened, None, ())
        return
    with TemporaryDirectory(prefix="pesky-") as folder:
        torch_path = Path(folder) / "torch.sqlite" if with_torch else None
        with Store(store or Path(folder) / "race.sqlite") as opened:
            skipped = _load(opened, files)
            of_torch: list[Path] = []
            if torch_path is not None:
                with TorchStore(torch_path) as torch_store:
                    foreign = _load(torch_store, list(skipped))
                of_torch = [path for path in skipped if path not in foreign]
            skipped = {path: reason for path, reason in skipped.items() if path not in of_torch}
            _say(skipped, nothing_left=len(skipped) == len(files))
            used = tuple(path for path in files if path not in skipped)
            yield Rows(opened, torch_path if of_torch else None, used)


def _load(store: Store | TorchStore, files: Sequence[Path]) -> dict[Path, str]:
    """Read what is of a store's kind; return why the others are not."""
    skipped = {}
    for path in files:
        try:
            store.load(path)
        except ForeignRowsError as error:
            skipped[path] = error.reason
    return skipped


def _say(skipped: dict[Path, str], nothing_left: bool) -> None:
    if nothing_left:
        reasons = ", ".join(f"{path} ({reason})" for path, reason in skipped.items())
        raise InputError(f"no file holds rows of pesky race: {reasons}")
    for path, reason in skipped.items():
        print(f"pesky: {path} is skipped: {reason}", file=sys.stderr)
