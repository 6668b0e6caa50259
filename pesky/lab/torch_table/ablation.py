"""Parts of VSGD's robust form that a run can do without, to see what each contributes.

Nothing in the product knows of this: what a part does is replaced while a step is taken, for the
whole process, which does one run at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from unittest.mock import patch

from torch import Tensor

from pesky import length, rule
from pesky.torch import stepping
from pesky.torch.passes.bundle import BufferOf, Bundle, Level, Part
from pesky.torch.passes.eager import EagerBundle, curvature_at
from pesky.torch.step import alarm, direction, measuring
from pesky.torch.step.collective import Collective
from pesky.torch.step.levels import take_level

__all__ = ["ABLATION_TASKS", "PARTS", "LeftOut", "without"]

ABLATION_TASKS = (
    "mlp-64",
    "mlp-1024",
    "softmax-64",
    "autoencoder",
    "lstm",
    "pinn",
    "friedman",
    "vae",
    "relabelled-digits",
    "rotating-regression",
)

_ANY_GROWTH = 1e9  # of the scale in one step: never reached


@dataclass(frozen=True)
class LeftOut:
    """A part that is not there: `title` says what is done instead, `replaced` does it meanwhile."""

    title: str
    replaced: Callable[[], AbstractContextManager[object]]


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Leave out parts in all steps that are taken meanwhile."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(PARTS[name].replaced())
        yield


def _with(owner: object, name: str, value: object) -> Callable[[], AbstractContextManager[object]]:
    """Return what replaces an attribute while it is entered."""
    return partial(patch.object, owner, name, value)


# --- Rates: every entry of a direction has its own ------------------------------------------------

Rates = Callable[[Tensor, Tensor, Level], Tensor]  # from g^2/v, v and the level of a tensor


def _alike(ratio: Tensor, v: Tensor, level: Level) -> Tensor:
    return rule.learning_rate(ratio, curvature_at(level._replace(curvature=1.0), v))  # type: ignore[no-any-return]


def _flat(ratio: Tensor, v: Tensor, level: Level) -> Tensor:
    return rule.learning_rate(ratio, v.new_tensor(level.curvature))  # type: ignore[no-any-return]


def _believing(ratio: Tensor, v: Tensor, level: Level) -> Tensor:
    curvature = level.curvature * (v * level.inverse_square).sqrt()
    return rule.learning_rate(ratio, curvature)  # type: ignore[no-any-return]


def _noiseless(ratio: Tensor, v: Tensor, level: Level) -> Tensor:
    return rule.learning_rate((v > 0).to(v), curvature_at(level, v))  # type: ignore[no-any-return]


class _Rated(EagerBundle):
    """A bundle whose directions have other rates."""

    def __init__(self, rates: Rates, parts: Sequence[Part]) -> None:
        super().__init__(parts)
        self._rates = rates

    def rates(
        self, ratios: Sequence[Tensor], mean_squares: Sequence[Tensor], levels: Sequence[Level]
    ) -> list[Tensor]:
        return [self._rates(*one) for one in zip(ratios, mean_squares, levels, strict=True)]


def _direction_by(rates: Rates, bundles: Sequence[Bundle], buffer_of: BufferOf) -> direction.Direction:
    """Do as `direction_of`, with other rates."""
    return direction.direction_of([_Rated(rates, bundle.parts) for bundle in bundles], buffer_of)


def _with_rates(rates: Rates) -> Callable[[], AbstractContextManager[object]]:
    return _with(measuring, "direction_of", partial(_direction_by, rates))


# --- What else is done instead --------------------------------------------------------------------


def _same_caution(caution: float, score: float, window: float) -> float:
    return caution


def _show_iterate(collective: Collective) -> None:
    collective.shows_average = 0.0


def _never(*known: object) -> bool:
    return False


def _is_not_finite(change: float, slope: float, scale: float) -> bool:
    return not change < inf


def _near_scale(near: float, best: float, far: float) -> float:
    return max(length.SHORTEST, near)


def _unprobed_scale(near: float, best: float, far: float) -> float:
    return length.PROBE


def _go_on(optimizer: stepping.SteppingOptimizer, loss: float) -> None:
    """Take in a loss of changed data as if it were like all others."""
    length.add_loss(optimizer.collective, loss)


PARTS = {
    "levels": LeftOut("all tensors have the same level", _with_rates(_alike)),
    "level-memory": LeftOut(
        "levels are means over all measurements so far",
        _with(direction, "take_level", partial(take_level, longest=inf)),
    ),
    "floor": LeftOut("curvatures below their tensor's level are believed", _with_rates(_believing)),
    "entries": LeftOut("every entry's curvature is its tensor's level", _with_rates(_flat)),
    "noise-ratio": LeftOut("gradients count as if without noise, g²/v = 1", _with_rates(_noiseless)),
    "probes": LeftOut(
        "the first scale is 1e-3, whatever probes tell", _with(length, "first_scale", _unprobed_scale)
    ),
    "far-probe": LeftOut(
        "the first scale is that of the first probe which lowers the loss",
        _with(length, "first_scale", _near_scale),
    ),
    "growth-limit": LeftOut("the scale grows at once", _with(length, "GROWTH", _ANY_GROWTH)),
    "long-memory": LeftOut("expectations look back 20 steps", _with(length, "MEMORY_SHARE", 0.0)),
    "seldom-losses": LeftOut("losses are evaluated again in every step", _with(stepping, "_SELDOM", 1)),
    "steep-check": LeftOut(
        "no step is checked out of turn, however steep", _with(length, "is_steep", _never)
    ),
    "shortening": LeftOut(
        "no step is shortened while losses are finite", _with(length, "is_gross", _is_not_finite)
    ),
    "undo": LeftOut(
        "no gross step is undone while losses are finite", _with(length, "is_suspicious", _never)
    ),
    "alarm": LeftOut("no rise of losses raises an alarm", _with(alarm, "is_raised", _never)),
    "going-back": LeftOut(
        "after every alarm the data counts as changed", _with(alarm, "has_run_away", _never)
    ),
    "new-start": LeftOut(
        "nothing is done after an alarm where the data has changed",
        _with(stepping.SteppingOptimizer, "_start_anew", _go_on),
    ),
    "caution": LeftOut("caution stays 1", _with(length, "next_caution", _same_caution)),
    "average": LeftOut(
        "the iterate is always visible", _with(Collective, "choose_visible", _show_iterate)
    ),
}
