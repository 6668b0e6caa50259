"""Parts of VSGD's robust form that a run can do without, to see what each contributes.

Nothing in the product knows of this: what a part does is replaced while a step is taken, for the
whole process, which does one run at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from unittest.mock import patch

import torch
from torch import Tensor

from pesky import length, rule
from pesky.direction import follow_gradient
from pesky.torch.loss.again import Losses
from pesky.torch.outcome import NOT_FINITE, Outcome
from pesky.torch.passes.bundle import Bundle, Level, Part
from pesky.torch.passes.eager import curvature_at, sample_of
from pesky.torch.step import measuring
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import Direction
from pesky.torch.step.levels import level_of, take_level
from pesky.torch.step.places import Places

__all__ = ["ABLATION_TASKS", "PARTS", "LeftOut", "without"]

ABLATION_TASKS = ("mlp-64", "softmax-64", "cifar-mlp", "autoencoder")

_ANY_GROWTH = 1e9  # of the scale in one step: never reached

Rates = Callable[[Tensor, Tensor, Level], Tensor]  # from g^2/v, v and the level of a tensor


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


def _same_caution(caution: float, score: float, window: float) -> float:
    return caution


def _show_iterate(collective: Collective) -> None:
    collective.shows_average = 0.0


def _no_trouble(losses: Losses, collective: Collective, places: Places) -> Outcome:
    if not isfinite(losses.first):
        return Outcome(skipped=NOT_FINITE, undo=True)
    length.add_loss(collective, losses.first)
    return Outcome()


def _is_not_finite(change: float, slope: float, scale: float) -> bool:
    return not change < inf


def _near_scale(near: float, best: float, far: float) -> float:
    return max(length.SHORTEST, near)


def _alike(ratio: Tensor, v: Tensor, level: Level) -> Tensor:
    return rule.learning_rate(ratio, curvature_at(level._replace(curvature=1.0), v))  # type: ignore[no-any-return]


def _flat(ratio: Tensor, v: Tensor, level: Level) -> Tensor:
    return rule.learning_rate(ratio, v.new_tensor(level.curvature))  # type: ignore[no-any-return]


def _believing(ratio: Tensor, v: Tensor, level: Level) -> Tensor:
    curvature = level.curvature * (v * level.inverse_square).sqrt()
    return rule.learning_rate(ratio, curvature)  # type: ignore[no-any-return]


def _noiseless(ratio: Tensor, v: Tensor, level: Level) -> Tensor:
    return rule.learning_rate((v > 0).to(v), curvature_at(level, v))  # type: ignore[no-any-return]


def _direction_by(
    rates: Rates, bundles: Sequence[Bundle], buffer_of: Callable[[Part], Tensor]
) -> Direction:
    """Do as `direction_of`, with other rates; every entry has its own."""
    parts, values, slopes = [], [], []
    for bundle in bundles:
        for part in bundle.parts:
            take_level(part)
            state, (gradient, _) = part.state, sample_of(part, part.theta)
            averages = [state[name] for name in ("mean_gradient", "mean_square", "memory")]
            ratio, *after = follow_gradient(gradient, *averages)
            for average, value in zip(averages, after, strict=True):
                average.copy_(value)
            rate = rates(ratio, averages[1], level_of(state, part.group))
            state["typical_square"] = float(averages[1].mean())
            parts.append(part)
            values.append(torch.mul(rate, gradient, out=buffer_of(part)))
            slopes.append((values[-1] * gradient).sum())
    return Direction(parts, values, float(torch.stack(slopes).double().sum()) if slopes else 0.0)


def _with_rates(rates: Rates) -> Callable[[], AbstractContextManager[object]]:
    return partial(patch.object, measuring, "direction_of", partial(_direction_by, rates))


PARTS = {
    "caution": LeftOut("caution stays 1", partial(patch.object, length, "next_caution", _same_caution)),
    "average": LeftOut(
        "the iterate is always visible",
        partial(patch.object, Collective, "choose_visible", _show_iterate),
    ),
    "levels": LeftOut("all tensors have the same level", _with_rates(_alike)),
    "floor": LeftOut("curvatures below their tensor's level are believed", _with_rates(_believing)),
    "entries": LeftOut("every entry's curvature is its tensor's level", _with_rates(_flat)),
    "noise-ratio": LeftOut("gradients count as if without noise, g^2/v = 1", _with_rates(_noiseless)),
    "long-memory": LeftOut(
        "expectations look back 20 steps", partial(patch.object, length, "MEMORY_SHARE", 0.0)
    ),
    "growth-limit": LeftOut(
        "the scale grows at once", partial(patch.object, length, "GROWTH", _ANY_GROWTH)
    ),
    "undo": LeftOut(
        "no step is undone while losses are finite",
        partial(patch.object, measuring, "trouble", _no_trouble),
    ),
    "shortening": LeftOut(
        "no step is shortened while losses are finite",
        partial(patch.object, length, "is_gross", _is_not_finite),
    ),
    "far-probe": LeftOut(
        "the first scale is that of the first probe which lowers the loss",
        partial(patch.object, length, "first_scale", _near_scale),
    ),
}
