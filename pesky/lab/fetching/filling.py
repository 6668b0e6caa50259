"""Fetching what is missing or damaged, from one source after the other."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pesky.errors import InputError
from pesky.lab.datasets import FILES, DataFile, cache_folder, file_state, find_folder, where_to_put
from pesky.lab.fetching.delivery import SourceError, Watch
from pesky.lab.fetching.known_sources import sources

__all__ = ["fetch", "target_folder", "unsound"]


def target_folder(name: str, given: str | Path | None = None) -> Path:
    """Return where a data set is fetched to: `given`, or where some of it is, PESKY_DATA, the cache."""
    if given is not None:
        return Path(given)
    named = os.environ.get("PESKY_DATA")
    return find_folder(name) or (Path(named) if named else cache_folder())


def unsound(name: str, folder: Path) -> list[DataFile]:
    """Return the files that are missing from the folder or not as published."""
    return [file for file in FILES[name] if file_state(folder / file.path, file) != "ok"]


def fetch(name: str, folder: Path, watch: Watch | None = None) -> dict[str, str]:
    """Fetch what is missing or damaged; return the source of each file that came."""
    watch = watch or Watch()
    try:
        (folder / name).mkdir(parents=True, exist_ok=True)
        with _alone_in(folder / name, watch):
            return _fetch(name, folder, watch)
    except OSError as error:  # those of the network are SourceErrors by now
        raise InputError(
            f"{name} cannot be written to {folder}: {error.strerror or error}; make it writable, "
            "make room, or name another folder with --data"
        ) from None


def _fetch(name: str, folder: Path, watch: Watch) -> dict[str, str]:
    wanted, came, failures = unsound(name, folder), dict[str, str](), []
    for source in sources(name):
        if not wanted:
            break
        try:
            source.deliver(folder, wanted, watch)
        except SourceError as error:
            failures.append(f"{source.name} ({error})")
            watch.note(f"{name}: {failures[-1]}")
        left = unsound(name, folder)
        came |= {file.path: source.name for file in wanted if file not in left}
        wanted = left
    if wanted:
        raise InputError(
            f"{name} could not be fetched from {', '.join(failures) or 'anywhere'}; "
            f"{where_to_put(name, folder)}"
        )
    for part in (folder / name).glob(".*.part"):  # begun from a source that then gave up
        part.unlink()
    return came


@contextmanager
def _alone_in(folder: Path, watch: Watch) -> Iterator[None]:
    """Wait until no other process fetches into the folder: two would write the same partial file."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                watch.note(f"waiting for another process that fetches into {folder}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
