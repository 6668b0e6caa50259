"""The numbers that all parameters share in the robust dialect: scale, caution, and how they came."""

from dataclasses import asdict, dataclass, field
from math import isfinite, sqrt
from typing import Any

from pesky import rule

__all__ = ["Collective", "Mean"]

MEMORY = 20.0  # steps that scale and caution look back at first
MEMORY_SHARE = 0.05  # of all steps so far, by which that grows
GROWTH = 1.1  # of the scale in one step, at most
SHARE = 0.2  # of all steps so far: the window of the average of the iterates
HISTORY = 64  # entries


@dataclass
class Mean:
    """An exponential average over a number of samples; of fewer, their plain average."""

    value: float = 0.0
    memory: float = 0.0

    def add(self, sample: float, longest: float) -> None:
        """Take in a number; the average is over the last `longest` ones."""
        self.memory = self.memory * (1 - 1 / longest) + 1
        self.value = rule.average(self.value, sample, self.memory)


@dataclass
class Collective:
    """See docs/theory.md; the step is theta - lr caution scale p."""

    slope: Mean = field(default_factory=Mean)  # E[g.p]
    curvature: Mean = field(default_factory=Mean)  # E[p.Hp]
    lead: Mean = field(default_factory=Mean)  # E[d], d = loss of the iterate - loss of the average
    lead_square: Mean = field(default_factory=Mean)  # E[d^2]
    scale: float = 0.0  # none yet
    caution: float = 1.0
    moves: int = 0  # that the average of the iterates consists of
    shortened: int = 0
    restored: int = 0
    shows_average: bool = False
    has_statistics: bool = False  # whether there are buffers that passes change, such as batch norm's
    undoable: bool = False  # whether the previous iterate is another
    history: list[float] = field(default_factory=list)  # caution times scale, at equal distances
    distance: int = 1
    since: int = 0  # the last entry of the history

    @property
    def memory(self) -> float:
        """Of the expectations, in measurements."""
        return MEMORY + MEMORY_SHARE * self.moves

    @property
    def window(self) -> float:
        """Of the average of the iterates, in steps."""
        return SHARE * self.moves

    @property
    def is_average_due(self) -> bool:
        """Whether this step compares iterate and average."""
        return self.moves >= MEMORY and self.moves % 2 == 0

    @property
    def is_average_better(self) -> bool:
        """Whether to show the average.

        Statistics in buffers fit one place only, so with them there is no way back: the change comes
        while the average is so short that it hardly differs from the iterate.
        """
        return self.lead.value > 0 or (self.has_statistics and self.lead.memory > 0)

    def begin(self, scale: float) -> None:
        """Set the first scale."""
        self.scale = scale
        self.add_curvature(self.slope.value / scale)

    def add_slope(self, sample: float) -> None:
        """Take in a g.p."""
        self.slope.add(sample, self.memory)

    def add_curvature(self, sample: float) -> None:
        """Take in a p.Hp."""
        self.curvature.add(sample, self.memory)

    def adapt(self) -> None:
        """Set the scale from the averages."""
        self.scale = rule.next_scale(self.slope.value, self.curvature.value, GROWTH * self.scale)

    def shorten(self, scale: float) -> None:
        """Set a scale that a step turned out to need."""
        self.shortened += 1
        self.scale = scale
        self.curvature.value = self.slope.value / scale

    def restore(self) -> None:
        """Note that the last step had to be undone."""
        self.restored += 1
        if self.scale > 0:
            self.scale /= 2
            self.curvature.value = self.slope.value / self.scale

    def compare(self, lead: float) -> None:
        """Set the caution from iterate against average."""
        if not isfinite(lead):
            return
        self.lead.add(lead, self.memory)
        self.lead_square.add(lead * lead, self.memory)
        if self.lead_square.value > 0:
            score = self.lead.value / sqrt(self.lead_square.value)
            self.caution = rule.next_caution(self.caution, score, MEMORY + self.window)

    def count(self) -> float:
        """Note a move; return the weight of the new iterate in the average."""
        self.moves += 1
        self.since += 1
        if self.since >= self.distance:
            self.history.append(self.caution * self.scale)
            self.since = 0
        if len(self.history) > HISTORY:
            self.history = self.history[1::2]
            self.distance *= 2
        return 1 / (self.window + 1)

    def start_over(self) -> None:
        """Average anew: the parameters were changed from outside."""
        self.moves, self.shows_average, self.undoable = 0, False, False
        self.lead, self.lead_square = Mean(), Mean()

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Collective":
        """Return what `as_dict` was called on."""
        means = ("slope", "curvature", "lead", "lead_square")
        copied = {**values, "history": list(values["history"])}
        return cls(**{**copied, **{name: Mean(**values[name]) for name in means}})
