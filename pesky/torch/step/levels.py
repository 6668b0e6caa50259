"""Levels: how strongly a tensor's gradient changes with the parameters, measured now and then.

A curvature sample is what the gradient changes by when all parameters move by random signs. Its mean
square over a tensor is that of the lengths of the Hessian's rows. See docs/theory.md.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from pesky import length, rule
from pesky.torch.passes.bundle import Level, Part
from pesky.torch.passes.pieces import sum_of_squares
from pesky.torch.settings import l2_of
from pesky.torch.shards import sums_of

__all__ = [
    "NO_LEVEL",
    "State",
    "floor_of",
    "forget_level",
    "has_level",
    "level_of",
    "mean_of",
    "remember",
    "take_levels",
    "take_usual_squares",
]

State = dict[str, Any]

# "level_square" is the average of squares, "level_memory" the samples it is over.
NO_LEVEL: State = {
    "level_square": 0.0,
    "level_memory": 0.0,
    "typical_square": 0.0,
    "is_flat": True,  # whether nothing but zero has been measured
}


def has_level(state: State) -> bool:
    """Whether this is the state of a tensor in the robust dialect, whose gradient is dense."""
    return "level_square" in state


def forget_level(state: State) -> None:
    """Let the next sample be the level; what is known of gradients stays."""
    if has_level(state):
        state["level_memory"] = 0.0


def take_levels(parts: Sequence[Part], longest: float | None = None) -> None:
    """Take this step's curvatures, of parts that have one, into averages of so many samples or a few."""
    longest = length.FEWEST if longest is None else longest
    measured = [(part, part.curvature) for part in parts if part.curvature is not None]
    sums = sums_of(
        [sum_of_squares(found, part.curvature_factor, l2_of(part.group)) for part, found in measured],
        [part.spread for part, _ in measured],
    )
    for (part, _), total in zip(measured, sums, strict=True):
        state = part.state
        state["level_square"], state["level_memory"] = length.added(
            state["level_square"], state["level_memory"], total / part.entries, longest
        )


def take_usual_squares(parts: Sequence[Part]) -> None:
    """Let the usual v of parts be the mean that they have now."""
    here = [mean_of(part.state["mean_square"]) * (part.theta.numel() / part.entries) for part in parts]
    for part, mean in zip(parts, sums_of(here, [part.spread for part in parts]), strict=True):
        part.state["typical_square"] = mean


def mean_of(values: Tensor) -> float:
    """Return the mean, 0 of nothing; torch's own last digit depends on the number of threads."""
    if values.numel() == 0:
        return 0.0
    wide = values.double()
    return float(wide.numpy().mean() if wide.is_cpu else wide.mean())


def level_of(state: State, group: State) -> Level:
    """Return what the curvatures of a tensor's entries are made of."""
    typical, largest = state["typical_square"], torch.finfo(state["mean_gradient"].dtype).max
    return Level(
        max(sqrt(state["level_square"]), floor_of(group)),
        min(1 / typical, largest) if typical > 0 else 0.0,
        1 / state["memory"],
    )


def remember(state: State, signal: float, square: float) -> None:
    """Take in the means of g^2 and v over a tensor: for the next memory, and the usual v.

    The memory is that of the paper's blocks: the share of signal is that of all entries together.
    """
    state["typical_square"] = square
    state["memory"] = rule.next_memory(state["memory"], rule.noise_ratio(signal, square))


def floor_of(group: State) -> float:
    """Return the lower bound on curvatures that the user set; 0 is none."""
    return float(group["curvature_floor"] or 0)
