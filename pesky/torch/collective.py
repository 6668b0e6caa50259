"""What all parameters share in the robust dialect: scale, caution, and their history."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from pesky import collective as shared

__all__ = ["Collective", "Mean"]

HISTORY = 64  # entries
_COUNTS = ("moves", "shortened", "restored")
_FLAGS = ("undoable", "shows_average")


class Mean(NamedTuple):
    """An average, and over how many samples it is."""

    value: float
    memory: float


@dataclass
class Collective:
    """The numbers of `pesky.collective`, whose functions change them, and what only torch needs."""

    numbers: list[float] = field(default_factory=lambda: list(shared.START))
    next_repeat: int = 0  # moves, from which on it is to be seen whether a loss repeats
    has_statistics: bool = False  # whether there are buffers that passes change, such as batch norm's
    last_slope: float = 0.0  # g.p of the last step, where the scale follows gradients
    spared_slope: float = 0.0  # of it, what an lr below 1 wants left
    history: list[float] = field(default_factory=list)  # caution times scale, at equal distances
    distance: int = 1
    since: int = 0  # the last entry of the history

    @property
    def scale(self) -> float:
        """Length of the step that the measurements speak for; 0: none yet."""
        return self.numbers[shared.SCALE]

    @property
    def caution(self) -> float:
        """Share of the scale that is used."""
        return self.numbers[shared.CAUTION]

    @property
    def lead(self) -> Mean:
        """Loss of the iterate minus loss of the average."""
        return Mean(self.numbers[shared.LEAD], self.numbers[shared.LEAD_MEMORY])

    @property
    def moves(self) -> int:
        """How many the average of the iterates consists of."""
        return int(self.numbers[shared.MOVES])

    @property
    def shortened(self) -> int:
        """Steps that were too long."""
        return int(self.numbers[shared.SHORTENED])

    @property
    def restored(self) -> int:
        """Steps that were undone."""
        return int(self.numbers[shared.RESTORED])

    @property
    def shows_average(self) -> bool:
        """Whether the average is visible."""
        return self.numbers[shared.SHOWS_AVERAGE] > 0

    @property
    def is_repeat_due(self) -> bool:
        """Whether this step makes sure that its loss repeats: at first, then ever more seldom."""
        return self.moves >= self.next_repeat

    def note_repeat(self) -> None:
        """Note that losses repeated so far."""
        if self.is_repeat_due:
            self.next_repeat = max(1, 2 * self.moves)

    @property
    def is_average_due(self) -> bool:
        """Whether this step compares iterate and average."""
        return shared.is_average_due(self.numbers)

    @property
    def prefers_average(self) -> bool:
        """Whether the average is to be shown.

        Statistics in buffers fit one place only, so with them there is no way back: the change comes
        while the average is so short that it hardly differs from the iterate.
        """
        return self.lead.value > 0 or (self.has_statistics and self.lead.memory > 0)

    def choose_visible(self) -> bool:
        """Decide whether to show the average."""
        self.numbers[shared.SHOWS_AVERAGE] = float(self.prefers_average)
        return self.shows_average

    def count(self) -> float:
        """Note a move; return the weight of the new iterate in the average."""
        self.since += 1
        if self.since >= self.distance:
            self.history.append(shared.length(self.numbers))
            self.since = 0
        if len(self.history) > HISTORY:
            self.history = self.history[1::2]
            self.distance *= 2
        return shared.count_move(self.numbers)

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers by their names, for `from_dict`."""
        own = asdict(self)
        named: dict[str, Any] = dict(zip(shared.NAMES, own.pop("numbers"), strict=True))
        named |= {name: int(named[name]) for name in _COUNTS}
        return named | {name: bool(named[name]) for name in _FLAGS} | own

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Collective":
        """Return what `as_dict` was called on."""
        own = {name: value for name, value in values.items() if name not in shared.NAMES}
        starts = dict(zip(shared.NAMES, shared.START, strict=True))
        numbers = [float(values.get(name, starts[name])) for name in shared.NAMES]
        return cls(**{**own, "numbers": numbers, "history": list(values["history"])})
