"""Steps that are not taken: why, and what a user can do about it."""

from typing import NamedTuple

__all__ = [
    "ASTRAY",
    "CURVATURE",
    "DIRECTION",
    "GRADIENT",
    "HIGHER",
    "NOTHING_HELPS",
    "NOT_FINITE",
    "NO_GRADIENT",
    "NO_REPEAT",
    "REMEDIES",
    "SCALER",
    "TURNED",
    "Outcome",
    "patience",
]

NOT_FINITE = "loss not finite"
HIGHER = "loss much higher after the last step"
ASTRAY = "losses higher after the last steps"
TURNED = "slope turned round after the last step"
GRADIENT = "gradient not finite, or its square"
CURVATURE = "curvature not finite"
DIRECTION = "direction not finite"
NOTHING_HELPS = "no step along the direction lowers the loss"
NO_REPEAT = "loss does not repeat"
NO_GRADIENT = "no parameter has a gradient"
SCALER = "the loss scaler found inf or nan"

_DATA = "look for NaN, inf or no samples at all in the batch, and for overflow in the model"
_STEPS = "print(optimizer.explain()) shows more; granularity='block' is steadier"
_BACK = "the average of earlier parameters is gone on from each time; "
REMEDIES = {
    NOT_FINITE: _DATA,
    HIGHER: _BACK + _STEPS,
    ASTRAY: _BACK + _STEPS,
    TURNED: "the last step is undone each time; " + _STEPS,
    GRADIENT: "torch.autograd.set_detect_anomaly(True) names the operation; " + _DATA,
    CURVATURE: "curvature='finite-difference' with minimize, or 'hutchinson', measures in other ways",
    DIRECTION: "a larger curvature_floor bounds it",
    NOTHING_HELPS: "its closure may not compute the loss that was differentiated; " + _STEPS,
    NO_REPEAT: "draw the batch before minimize(closure), not inside the closure",
    NO_GRADIENT: "the loss depends on none of the optimizer's parameters: they are frozen, or the model "
    "has got others since the optimizer was made",
    SCALER: "torch.autograd.set_detect_anomaly(True) names the operation; " + _DATA,
}

_SEVERAL = 5
_SCALER = 20  # a GradScaler starts too high on purpose, and skips until it has come down


class Outcome(NamedTuple):
    """What became of a step."""

    skipped: str | None = None  # the reason, if nothing moved that was to
    undo: bool = False  # whether to go back to the average, which has not seen the last step
    changed: bool = False  # whether the data is not what it was
    held: bool = False  # whether entries stayed, as they would not be finite

    def joined(self, held: bool) -> "Outcome":
        """Return the outcome with that of parts which move by themselves."""
        return self._replace(held=self.held or held)


def patience(reason: str) -> int:
    """Return how many steps in a row may be skipped before that is worth a warning."""
    return _SCALER if reason == SCALER else _SEVERAL
