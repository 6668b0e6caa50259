"""Archives: members are read one by one by their last name; no path in one is ever written to."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pesky.lab.fetching.delivery import SourceError

__all__ = ["Members", "opened_tar", "opened_wheel"]

Members = Callable[[str], bytes]


@contextmanager
def opened_wheel(path: Path) -> Iterator[Members]:
    """Open what pip delivers; the function yielded reads a member by its name."""
    with _archive_errors(path), zipfile.ZipFile(path) as archive:
        yield lambda name: archive.read(_named(name, archive.namelist()))


@contextmanager
def opened_tar(path: Path) -> Iterator[Members]:
    """Open a compressed tar file likewise."""
    with _archive_errors(path), tarfile.open(path, "r:gz") as archive:

        def read(name: str) -> bytes:
            member: IO[bytes] | None = archive.extractfile(_named(name, archive.getnames()))
            if member is None:
                raise SourceError(f"its {name} is no file")
            return member.read()

        yield read


def _named(name: str, members: list[str]) -> str:
    for member in members:
        if member.rpartition("/")[2] == name:
            return member
    raise SourceError(f"it has no {name}")


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{path.name.strip('.')} is damaged: {error}") from None
