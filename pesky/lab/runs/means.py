"""A number over several runs: its mean and how sure that is."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

__all__ = ["PARTS", "Mean", "Part"]

Part = Literal["train", "test"]  # of the data, which a number is measured on
PARTS: tuple[Part, ...] = ("train", "test")


@dataclass(frozen=True)
class Mean:
    """The mean over runs of one number."""

    mean: float
    deviation: float  # between runs
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Return the mean of what runs gave; None without any."""
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), deviation, len(values))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / math.sqrt(self.runs)
