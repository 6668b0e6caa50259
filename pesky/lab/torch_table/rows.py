"""The table's runs, as they are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pesky.lab.runs.layout import Layout
from pesky.lab.runs.store import RunStore

__all__ = [
    "TABLE_VERSION",
    "Mark",
    "Pair",
    "Point",
    "Row",
    "RunKey",
    "Store",
    "curve_text",
    "parse_curve",
    "parse_mark",
]

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

    status: Literal["finished", "diverged", "too slow"]
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
    cost: float | None = None  # of all steps so far, in passes; None: not counted


class Pair(NamedTuple):
    """Both numbers that a model is judged by, at some time of a run."""

    train: float
    test: float


Mark = Literal["start", "equal-cost"]  # before the first step; when as many passes are done as Adam's


def curve_text(points: Sequence[Point], marks: Mapping[Mark, Pair] | None = None) -> str:
    """Return points as one short text: ``start 2.31 90.2;1 0.002 2.303 1;2 0.004 2.291 2``."""
    words = [f"{name} {pair.train:.6g} {pair.test:.6g}" for name, pair in (marks or {}).items()]
    return ";".join([*words, *map(_point_text, points)])


def _point_text(point: Point) -> str:
    text = f"{point.step} {point.seconds:.4g} {point.loss:.4g}"
    return text if point.cost is None else f"{text} {point.cost:.6g}"


def parse_curve(text: str) -> list[Point]:
    """Return the points of `curve_text`.

    >>> parse_curve("start 2.31 90.2;1 0.002 2.303 1")
    [Point(step=1, seconds=0.002, loss=2.303, cost=1.0)]
    """
    parts = (point.split() for point in text.split(";") if point[:1].isdigit())
    return [Point(int(step), *map(float, numbers)) for step, *numbers in parts]


def parse_mark(text: str, mark: Mark) -> Pair | None:
    """Return a mark of `curve_text`; None where rows have none, as those of old do.

    >>> parse_mark("start 2.31 90.2;1 0.002 2.303 1", "start")
    Pair(train=2.31, test=90.2)
    """
    for part in text.split(";"):
        name, *numbers = part.split() or [""]
        if name == mark:
            return Pair(*map(float, numbers))
    return None


_LAYOUT = Layout(RunKey, Row, mark=0x70657374, version=1, may_be_blank=frozenset({"curve"}))  # "pest"


class Store(RunStore[RunKey, Row]):
    """A file of the table's runs."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it."""
        super().__init__(path, _LAYOUT)
