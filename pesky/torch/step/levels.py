"""Levels: how strongly a tensor's gradient changes with the parameters, measured now and then.

A curvature sample is what the gradient changes by when all parameters move by random signs. Its mean
square over a tensor is that of the lengths of the Hessian's rows. See docs/theory.md.
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from pesky import length, rule
from pesky.torch.passes.bundle import Level, Part
from pesky.torch.passes.pieces import sum_of_squares
from pesky.torch.settings import l2_of

__all__ = [
    "NO_LEVEL",
    "State",
    "floor_of",
    "forget_level",
    "has_level",
    "level_of",
    "mean_of",
    "remember",
    "take_level",
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


def take_level(part: Part, longest: float | None = None) -> None:
    """Take this step's curvature, if it has one, into the average of so many samples, or a few."""
    if part.curvature is None:
        return
    decay, entries = l2_of(part.group), part.curvature.numel()
    sample = sum_of_squares(part.curvature, part.curvature_factor, decay) / entries
    state = part.state
    state["level_square"], state["level_memory"] = length.added(
        state["level_square"],
        state["level_memory"],
        sample,
        length.FEWEST if longest is None else longest,
    )


def mean_of(values: Tensor) -> float:
    """Return the mean; torch's own has a last digit that depends on the number of threads."""
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
