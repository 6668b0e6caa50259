"""What a source is, and how a file that it delivers takes its place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pesky.files import atomic_path
from pesky.lab.datasets import DataFile, file_state

__all__ = ["Source", "SourceError", "Watch", "install"]


class SourceError(Exception):
    """A source did not deliver: the next one is tried."""


class Watch:
    """What a fetch tells about itself; this one keeps it to itself."""

    def begin(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Say that something starts, of which `done` of `total` bytes are there."""

    def advance(self, count: int) -> None:
        """Say that bytes have come."""

    def note(self, text: str) -> None:
        """Say what else a user may want to know."""


@dataclass(frozen=True)
class Source:
    """A place and how files come from it: those it delivers are checked and put into the folder."""

    name: str
    deliver: Callable[[Path, Sequence[DataFile], Watch], None]


def install(folder: Path, file: DataFile, content: bytes) -> None:
    """Put a file into the folder if it is the published one."""
    path = folder / file.path
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
        if file_state(temporary, file) != "ok":
            raise SourceError(f"its {path.name} is not the published one")
