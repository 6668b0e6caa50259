"""How a parameter begins: initial batches, and then the slow start.

A tensor's first gradients and curvatures are averaged without moving it. Then v (or the squared length
l) and h are multiplied by the slow start's factor, and the memory starts at 2. Entries that the initial
batches left silent would have no slow start at all; an even start lends all the largest of their tensor.
"""

from math import inf

from pesky import rule
from pesky.torch.passes.bundle import OVERESTIMATED, Bundle, Part, Start, overestimate
from pesky.torch.step.levels import has_level, mean_of, take_level
from pesky.torch.step.sharing import owner_of

__all__ = ["collect"]


def collect(bundle: Bundle, start: Start, memory: float) -> None:
    """Take one of the initial batches into the averages; after the last of them, set the memory."""
    counts = [part.state["initial"] + 1 for part in bundle.parts]
    sums = bundle.observe(counts)
    for part, seen, (_, square, _) in zip(bundle.parts, counts, sums, strict=True):
        state = part.state
        state["initial"] = seen
        if "power" in state:
            state["power"] = rule.average(state["power"], square, seen)
        if has_level(state):
            take_level(part, longest=inf)
        if seen == start.batches:
            _end_collecting(part, start, memory)


def _end_collecting(part: Part, start: Start, memory: float) -> None:
    """Overestimate, so that the first steps are small."""
    state = part.state
    if part.group["granularity"] == "element":
        for name in OVERESTIMATED:
            if name in state:
                state[name].copy_(overestimate(state[name], start))
        if has_level(state):
            state["memory"] = memory
            state["typical_square"] = mean_of(state["mean_square"])
        else:
            state["memory"].fill_(memory)
        return
    if "mean_curvature" in state:
        state["mean_curvature"] *= start.factor
    state["power"] *= start.factor
    owner = owner_of(part)
    owner["memory"] = max(owner["memory"], memory)  # those that come later find a longer one
    if part.group["granularity"] == "global":
        part.group["shared"]["power"] += state["power"]  # those that come later join the others
