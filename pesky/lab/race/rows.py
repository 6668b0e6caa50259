"""The race's runs, as they are stored."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pesky.lab.runs.layout import Layout
from pesky.lab.runs.store import RunStore

__all__ = ["Row", "RunKey", "Store"]

Status = Literal["finished", "diverged", "cut"]


class RunKey(NamedTuple):
    """Everything that determines a run's result."""

    benchmark: str
    data: str  # checksum of the data
    split: str  # which part is trained on, and which measured
    layers: str
    loss: str
    method: str  # with its dialect or reading
    settings: str  # canonical: eta0=3e-2 gamma=1/2
    epochs: int
    seed: int
    numerics: int  # version of the engine's arithmetic
    protocol: str  # L2, preprocessing, readings of methods, and the rule by which runs are cut


@dataclass(frozen=True)
class Row:
    """What came out of a run; errors in percent, or reconstruction errors."""

    status: Status
    train: float | None
    test: float | None
    first_epoch_test: float | None
    diverged_at: int | None
    samples: int  # learnt from
    seconds: float


_LAYOUT = Layout(RunKey, Row, mark=0x7065736B, version=1, may_be_blank=frozenset({"settings"}))  # "pesk"


class Store(RunStore[RunKey, Row]):
    """A file of a race's runs."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it."""
        super().__init__(path, _LAYOUT)
