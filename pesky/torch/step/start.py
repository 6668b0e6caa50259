"""How a parameter begins: initial batches, and then the slow start.

A tensor's first gradients and curvatures are averaged without moving it. Then v (or the squared length
l) and h are multiplied by the slow start's factor, and the memory starts at 2. Entries that the initial
batches left silent would have no slow start at all; an even start lends all the largest of their tensor.
"""

from collections.abc import Sequence
from math import inf

from pesky import rule
from pesky.torch.passes.bundle import OVERESTIMATED, Bundle, Part, Start, overestimate
from pesky.torch.shards import largest_of
from pesky.torch.step.levels import has_level, take_levels, take_usual_squares
from pesky.torch.step.sharing import owner_of

__all__ = ["collect"]


def collect(bundle: Bundle, start: Start, memory: float) -> None:
    """Take one of the initial batches into the averages; after the last of them, set the memory."""
    counts = [part.state["initial"] + 1 for part in bundle.parts]
    sums = bundle.observe(counts)
    for part, seen, (_, square, _) in zip(bundle.parts, counts, sums, strict=True):
        part.state["initial"] = seen
        if "power" in part.state:
            part.state["power"] = rule.average(part.state["power"], square, seen)
    take_levels([part for part in bundle.parts if has_level(part.state)], longest=inf)
    _end_collecting(
        [part for part in bundle.parts if part.state["initial"] == start.batches], start, memory
    )


def _end_collecting(parts: Sequence[Part], start: Start, memory: float) -> None:
    """Overestimate, so that the first steps are small."""
    elements = [part for part in parts if part.group["granularity"] == "element"]
    for name in OVERESTIMATED:
        _overestimate([part for part in elements if name in part.state], name, start)
    for part in elements:
        if has_level(part.state):
            part.state["memory"] = memory
        else:
            part.state["memory"].fill_(memory)
    take_usual_squares([part for part in elements if has_level(part.state)])
    for part in parts:
        if part.group["granularity"] != "element":
            _end_collecting_of_shared(part, start, memory)


def _overestimate(parts: Sequence[Part], name: str, start: Start) -> None:
    """Overestimate an average of many parts; an even start is that of whole tensors."""
    for part in parts:
        part.state[name].copy_(overestimate(part.state[name], start))
    spread = [part for part in parts if part.spread is not None]
    if start.even and spread:
        lent = [float(part.state[name].max()) if part.theta.numel() > 0 else 0.0 for part in spread]
        for part, value in zip(spread, largest_of(lent, [part.spread for part in spread]), strict=True):
            part.state[name].fill_(value)


def _end_collecting_of_shared(part: Part, start: Start, memory: float) -> None:
    state = part.state
    if "mean_curvature" in state:
        state["mean_curvature"] *= start.factor
    state["power"] *= start.factor
    owner = owner_of(part)
    owner["memory"] = max(owner["memory"], memory)  # those that come later find a longer one
    if part.group["granularity"] == "global":
        part.group["shared"]["power"] += state["power"]  # those that come later join the others
