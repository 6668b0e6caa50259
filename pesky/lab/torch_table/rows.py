"""The table's runs, as they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pesky.lab.runs.layout import Layout
from pesky.lab.runs.store import RunStore

__all__ = ["TABLE_VERSION", "Point", "Row", "RunKey", "Store", "curve_text", "parse_curve"]

TABLE_VERSION = 1  # raised by hand when tasks, batches or measurements change


class RunKey(NamedTuple):
    """Everything that determines a run's result."""

    task: str
    data: str  # checksum of the data
    method: str
    settings: str  # canonical: lr=3e-2 momentum=0.9
    steps: int
    seed: int
    revision: int  # of the method
    table_version: int


@dataclass(frozen=True)
class Row:
    """What came out of a run."""

    status: Literal["finished", "diverged"]
    train: float | None  # loss
    test: float | None  # as the task says
    diverged_at: int | None
    steps_done: int
    seconds: float  # of one core, in training
    curve: str  # see `curve_text`


class Point(NamedTuple):
    """Where a run was: `loss` is the mean over the batches since the point before."""

    step: int
    seconds: float
    loss: float


def curve_text(points: Sequence[Point]) -> str:
    """Return points as one short text: ``1 0.002 2.303;2 0.004 2.291``."""
    return ";".join(f"{point.step} {point.seconds:.4g} {point.loss:.4g}" for point in points)


def parse_curve(text: str) -> list[Point]:
    """Undo `curve_text`.

    >>> parse_curve("1 0.002 2.303")
    [Point(step=1, seconds=0.002, loss=2.303)]
    """
    parts = (point.split() for point in text.split(";") if point)
    return [Point(int(step), float(seconds), float(loss)) for step, seconds, loss in parts]


_LAYOUT = Layout(RunKey, Row, mark=0x70657374, version=1, may_be_blank=frozenset({"curve"}))  # "pest"


class Store(RunStore[RunKey, Row]):
    """A file of the table's runs."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it."""
        super().__init__(path, _LAYOUT)
