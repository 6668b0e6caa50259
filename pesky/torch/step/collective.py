"""What all parameters share in the robust dialect: the length of steps, and its history."""

from dataclasses import asdict, dataclass, field
from typing import Any

from pesky import length
from pesky.length import Length

__all__ = ["Collective"]

HISTORY = 64  # entries
_COUNTS = ("moves", "shortened", "restored")
_FLAGS = ("undoable", "shows_average")
_KEYS = {"averaged": "moves"}  # fields that have another name in a state_dict


@dataclass
class Collective(Length):
    """A `Length`, which the functions of `pesky.length` change, and what only torch needs."""

    next_repeat: int = 0  # moves, from which on it is to be seen whether a loss repeats
    has_statistics: bool = False  # whether there are buffers that passes change, such as batch norm's
    last_slope: float = 0.0  # g.p of the last step, where the scale follows gradients
    spared_slope: float = 0.0  # of it, what an lr below 1 wants left
    excess: float = 0.0  # of fresh losses over usual ones, summed up; see `alarm.py`
    calm_loss: float = 0.0  # the usual one, before there was any
    calm_spread: float = 0.0  # and its standard deviation
    changes: int = 0  # of the data, that losses told of
    history: list[float] = field(default_factory=list)  # caution times scale, at equal distances
    distance: int = 1
    since: int = 0  # the last entry of the history

    @property
    def is_repeat_due(self) -> bool:
        """Whether this step makes sure that its loss repeats: at first, then ever more seldom."""
        return self.averaged >= self.next_repeat

    def note_repeat(self) -> None:
        """Note that losses repeated so far."""
        if self.is_repeat_due:
            self.next_repeat = max(1, 2 * int(self.averaged))

    @property
    def prefers_average(self) -> bool:
        """Whether the average is to be shown.

        Statistics in buffers fit one place only, so with them there is no way back: the change comes
        while the average is so short that it hardly differs from the iterate.
        """
        return self.lead > 0 or (self.has_statistics and self.lead_memory > 0)

    @property
    def visible(self) -> str:
        """The place that is visible between two steps."""
        return "average" if self.shows_average > 0 else "iterate"

    def choose_visible(self) -> None:
        """Decide whether to show the average."""
        self.shows_average = float(self.prefers_average)

    def count(self) -> float:
        """Note a move; return the weight of the new iterate in the average."""
        self.since += 1
        if self.since >= self.distance:
            self.history.append(length.length_of(self))
            self.since = 0
        if len(self.history) > HISTORY:
            self.history = self.history[1::2]
            self.distance *= 2
        return length.count_move(self)

    def forget(self) -> None:
        """Forget what is known about the length, as another form goes on with other measurements."""
        for name in length.NAMES:
            setattr(self, name, getattr(_NOTHING_KNOWN, name))

    def start_anew(self) -> None:
        """Find the length anew, as the data has changed; what happened so far stays counted."""
        shortened, restored = self.shortened, self.restored
        self.forget()
        self.shortened, self.restored = shortened, restored
        self.changes += 1

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers by their names, for `from_dict`."""
        named = {_KEYS.get(name, name): value for name, value in asdict(self).items()}
        named |= {name: int(named[name]) for name in _COUNTS}
        return named | {name: bool(named[name]) for name in _FLAGS}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Collective":
        """Return what `as_dict` was called on."""
        fields = {key: name for name, key in _KEYS.items()}
        own = {fields.get(name, name): value for name, value in values.items()}
        own |= {name: float(own[name]) for name in length.NAMES if name in own}
        return cls(**{**own, "history": list(values["history"])})


_NOTHING_KNOWN = Length()
