"""Whether an optimizer gets anywhere: what losses and steps have been like, and one line about it."""

from dataclasses import asdict, dataclass, fields
from math import isfinite, sqrt
from typing import Any

from pesky import rule
from pesky.torch.outcome import REMEDIES, patience

__all__ = ["Progress", "Verdict"]

FIRST = 10  # losses that later ones are compared with
RECENT = 20.0  # steps that a recent loss is the average of
EARLY = 90  # steps after which a loss that has not moved is worth a warning, if they are short
LATE = 1000  # the same, whatever the steps are
SHORT = 1e-2  # a scale that has not come far from the first probe's, 1e-3
_SURE = 2.0  # standard errors between two means that differ
_LITTLE = 0.05  # of the first loss: a change by less is none, unless it is a fall and no noise
_WORSE = 10.0  # standard deviations that a recent loss is above the first ones when it diverges
COLLAPSED = 1e-6  # a scale below says that curvatures are wrong by a million and more
_COLLAPSED_FOR = 20  # moves, until that is worth a warning


@dataclass(frozen=True)
class Verdict:
    """One word, and why."""

    word: str  # starting, learning, stuck, skipping or diverging
    why: str

    def __str__(self) -> str:
        """Return the line that `explain` begins with."""
        return f"{self.word}: {self.why}"


@dataclass
class Progress:
    """Means and mean squares of losses, first and recent, and how steps went; saved with the state."""

    losses: int = 0
    first: float = 0.0
    first_square: float = 0.0
    recent: float = 0.0
    recent_square: float = 0.0
    skipped: int = 0  # steps in a row
    reason: str = ""  # of the last one that was skipped
    full: int = 0  # steps that lr made no shorter
    collapsed: int = 0  # moves in a row with a scale near nothing

    def note_loss(self, loss: float) -> None:
        """Take in the loss of a step."""
        if not isfinite(loss * loss):
            return
        self.losses += 1
        if self.losses <= FIRST:
            self.first = rule.average(self.first, loss, self.losses)
            self.first_square = rule.average(self.first_square, loss * loss, self.losses)
        memory = min(float(self.losses), RECENT)
        self.recent = rule.average(self.recent, loss, memory)
        self.recent_square = rule.average(self.recent_square, loss * loss, memory)

    def note_skip(self, reason: str) -> str | None:
        """Note a step that was not taken; return what is to be said about it, if anything."""
        self.skipped += 1
        self.reason = reason
        if self.skipped < patience(reason):
            return None
        return f"{self.skipped} steps in a row were skipped ({reason}): {REMEDIES[reason]}"

    def note_step(self, scale: float | None) -> str | None:
        """Note a step, and the scale if there is one; return what is to be said, if anything."""
        self.skipped = 0
        self.full += scale is not None
        is_collapsed = scale is not None and 0 < scale < COLLAPSED
        self.collapsed = self.collapsed + 1 if is_collapsed else 0
        if self.collapsed >= _COLLAPSED_FOR and not self.has_fallen:
            return (
                f"the scale of the steps has been below {COLLAPSED:g} for {self.collapsed} of them, and "
                "the loss does not fall: curvatures of some parameters are far too small; "
                "granularity='global' or curvature='finite-difference' helps where bbprop is wrong"
            )
        if self._is_still(scale):
            return (
                f"the loss has not moved in {self.losses} steps ({self.first:.4g} at first, "
                f"{self.recent:.4g} now): if it is not at its minimum, try granularity='global', and "
                "see print(optimizer.explain())"
            )
        return None

    @property
    def _noise(self) -> float:
        """Standard error of the difference between recent and first losses."""
        first = max(self.first_square - self.first**2, 0.0) / max(min(self.losses, FIRST), 1)
        recent = max(self.recent_square - self.recent**2, 0.0) / max(min(self.losses, RECENT), 1)
        return sqrt(first + recent)

    @property
    def has_fallen(self) -> bool:
        """Whether recent losses are below the first ones, by more than noise explains."""
        return self.first - self.recent > _SURE * self._noise

    @property
    def has_not_moved(self) -> bool:
        """Whether recent losses are what the first ones were."""
        return not self.has_fallen and abs(self.first - self.recent) <= _LITTLE * abs(self.first)

    def _is_still(self, scale: float | None) -> bool:
        """Whether the loss has not moved for long; with steps that can hardly move it, less is long.

        Where losses are so noisy that a little more or less could not be seen, nothing can be said.
        """
        if not scale or self._noise > _LITTLE * abs(self.first):
            return False
        return self.full >= (EARLY if scale <= SHORT else LATE) and self.has_not_moved

    @property
    def has_risen(self) -> bool:
        """Whether recent losses are far above the first ones."""
        spread = sqrt(max(self.first_square - self.first**2, 0.0))
        return self.recent - self.first > max(_WORSE * spread, abs(self.first))

    def verdict(self, collecting: str | None, scale: float | None) -> Verdict:
        """Sum it up; `collecting` says so if nothing moves yet."""
        change = f"the loss is {self.recent:.4g}, at first it was {self.first:.4g}"
        if self.skipped >= 2:
            return Verdict("skipping", f"{self.skipped} steps in a row ({self.reason})")
        if collecting is not None:
            return Verdict("starting", collecting)
        if self.has_risen:
            return Verdict("diverging", change)
        if scale is not None and 0 < scale < COLLAPSED and not self.has_fallen:
            return Verdict("stuck", f"the scale of the steps is {scale:.2g}; {change}")
        if self.losses >= EARLY and self.has_not_moved:
            return Verdict("stuck", f"{change}; that is no change in {self.losses} steps")
        return Verdict("learning", change)

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers by their names, for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """Return what `as_dict` was called on; what an older version did not know is as at first."""
        return cls(**{one.name: values[one.name] for one in fields(cls) if one.name in values})
