"""How settings are compared: at which seeds they run, by what, and which of them wins."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pesky.lab.race.rows import Row
from pesky.lab.runs.means import Part
from pesky.lab.runs.settings import Settings

__all__ = ["FINAL_SEEDS_FROM", "TUNING_SEEDS", "Select", "Setting", "winner"]

Select = Literal["test", "validation"]

TUNING_SEEDS = (0, 1)
FINAL_SEEDS_FROM = 100  # fresh ones: no setting was chosen by them


@dataclass(frozen=True)
class Setting:
    """One setting of a method with its tuning runs."""

    method: str
    settings: Settings
    runs: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        """Whether all tuning runs came to their end."""
        return len(self.runs) == len(TUNING_SEEDS) and all(
            run.status == "finished" and run.test is not None for run in self.runs
        )

    def mean(self, part: Part) -> float:
        """Return the mean error of a complete setting."""
        return statistics.fmean(getattr(run, part) for run in self.runs)


def winner(settings: Iterable[Setting]) -> Setting | None:
    """Return the complete setting with the lowest mean test error; of equals the first; None of none."""
    complete = (one for one in settings if one.complete)
    return min(complete, key=lambda one: one.mean("test"), default=None)
