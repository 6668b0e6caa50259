"""What a task is: the name that rows have, its length, and how an instance of it begins."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pesky.lab.torch_table.instance import Instance
from pesky.lab.torch_table.splits import Split, split_of

__all__ = ["MADE", "Task"]

MADE = "made"  # stands for the data of problems that are made here


def _made() -> str:
    return MADE


@dataclass(frozen=True)
class Task:
    """What is trained, for how long, and what is measured at the end."""

    name: str
    title: str
    steps: int
    test: str  # what the test number is
    data: Callable[[], str]  # checksum of the data
    begin: Callable[[int, Path | None], Instance]  # at a seed, with the data in a folder
    dataset: str | None = None  # that must be there
    package: str | None = None  # that must be installed
    is_changing: bool = False  # during the run: the training loss is then the mean over all its batches
    is_first: bool = True  # whether contestants that are not ranked are run, too

    @classmethod
    def made(
        cls,
        name: str,
        title: str,
        steps: int,
        test: str,
        begin: Callable[[int, Path | None], Instance],
        *,
        is_changing: bool = False,
    ) -> "Task":
        """Return a task that makes its own data."""
        return cls(name, title, steps, test, _made, begin, is_changing=is_changing)

    @property
    def split(self) -> Split:
        """Whether it is for development or for the test at the end."""
        return split_of(self.name)
