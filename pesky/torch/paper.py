"""How the paper's dialect takes a step: initial batches, slow start, then Algorithm 1.

A tensor's first gradients and curvatures are averaged without moving it. Then v (or the squared length
l) and h are multiplied by the slow start's factor, and the memory starts at 2. Entries that the initial
batches left silent would have no slow start at all; an even start lends all the largest of their tensor.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pesky import rule
from pesky.torch import kernels
from pesky.torch.eager import EagerBatch
from pesky.torch.fused import FusedBatch, is_fusible
from pesky.torch.parts import OVERESTIMATED, Batch, Part, Start, Sums, overestimate, statistics_type
from pesky.torch.rows import RowsBatch

__all__ = [
    "batches_of",
    "begin",
    "begin_shared",
    "collect",
    "count",
    "is_collecting",
    "shared_rates",
    "step",
]

State = dict[str, Any]


def begin(parameter: Tensor, granularity: str, by_rows: bool) -> State:
    """Return the averages of a parameter that has seen nothing; `by_rows`: its gradient is sparse."""
    kind = statistics_type(parameter)

    def zeros() -> Tensor:
        return torch.zeros_like(parameter, dtype=kind, memory_format=torch.preserve_format)

    state: State = {"initial": 0, "moves": 0, "mean_gradient": zeros(), "mean_curvature": zeros()}
    if granularity == "element":
        state["mean_square"] = zeros()
        state["memory"] = zeros().fill_(rule.START_MEMORY)
    else:
        state |= begin_shared()
    if by_rows:
        state["initial"] = torch.zeros(len(parameter), dtype=torch.int32, device=parameter.device)
    return state


def begin_shared() -> State:
    """Return what tensors that share a rate have in common: a tensor's own, or a group's."""
    return {"power": 0.0, "memory": rule.START_MEMORY, "rate": 0.0, "signal": 0.0}


def is_collecting(state: State, init_batches: int) -> bool:
    """Whether a parameter, or some of its rows, may still have initial batches to see."""
    initial = state["initial"]
    return isinstance(initial, int) and initial < init_batches


def batches_of(parts: Iterable[Part], init_batches: int) -> list[Batch | RowsBatch]:
    """Put together what can be worked on together: one stage, kind of rate, type and device."""
    alike: dict[Any, list[Part]] = {}
    for part in parts:
        kind: Any
        if isinstance(part.state["initial"], Tensor):
            kind = RowsBatch
        else:
            kind = FusedBatch if is_fusible(part) else EagerBatch
        collecting = is_collecting(part.state, init_batches)
        shared = part.group["granularity"] != "element"
        key = kind, collecting, shared, part.theta.dtype, part.theta.device
        alike.setdefault(key, []).append(part)
    return [key[0](members) for key, members in alike.items()]


def step(batches: Sequence[Batch | RowsBatch], start: Start) -> bool:
    """Let every batch collect or learn; return whether entries stay, as they would not be finite."""
    held = False
    sharing = []
    for batch in batches:
        if isinstance(batch, RowsBatch):
            held |= batch.advance(start)
        elif is_collecting(batch.parts[0].state, start.batches):
            collect(batch, start, rule.START_MEMORY)
        elif batch.parts[0].group["granularity"] == "element":
            held |= batch.update()
            count(batch)
        else:
            sharing.append(batch)
            count(batch)
    for batch, rates in zip(sharing, shared_rates(sharing), strict=True):
        held |= batch.descend(rates)
    return held


def count(batch: Batch) -> None:
    """Note a move of every part."""
    for part in batch.parts:
        part.state["moves"] += 1


def collect(batch: Batch, start: Start, memory: float) -> None:
    """Take one of the initial batches into the averages; after the last of them, set the memory."""
    counts = [part.state["initial"] + 1 for part in batch.parts]
    sums = batch.observe(counts)
    for part, seen, (_, square, _) in zip(batch.parts, counts, sums, strict=True):
        state = part.state
        state["initial"] = seen
        if "power" in state:
            state["power"] = rule.average(state["power"], square, seen)
        if seen == start.batches:
            _end_collecting(part, start, memory)


def _end_collecting(part: Part, start: Start, memory: float) -> None:
    """Overestimate, so that the first steps are small."""
    state = part.state
    if part.group["granularity"] == "element":
        for name in OVERESTIMATED:
            state[name].copy_(overestimate(state[name], start))
        state["memory"].fill_(memory)
        return
    state["mean_curvature"] *= start.factor
    state["power"] *= start.factor
    owner = _owner(part)
    owner["memory"] = max(owner["memory"], memory)  # those that come later find a longer one
    if part.group["granularity"] == "global":
        part.group["shared"]["power"] += state["power"]  # those that come later join the others


def _owner(part: Part) -> State:
    """Whatever holds memory, power and rate of a part that shares its rate."""
    shared: State = part.group["shared"] if part.group["granularity"] == "global" else part.state
    return shared


def shared_rates(batches: Sequence[Batch]) -> list[list[float]]:
    """Take a sample into the averages of tensors that share rates; return each one's rate."""
    members: dict[int, list[tuple[Part, Sums]]] = {}
    for batch in batches:
        sums = batch.average([_owner(part)["memory"] for part in batch.parts])
        for part, of_part in zip(batch.parts, sums, strict=True):
            members.setdefault(id(_owner(part)), []).append((part, of_part))
    for sharing in members.values():
        _conclude(sharing)
    return [[_owner(part)["rate"] for part in batch.parts] for batch in batches]


def _conclude(sharing: Sequence[tuple[Part, Sums]]) -> None:
    part = sharing[0][0]
    owner = _owner(part)
    double = any(statistics_type(part.theta) == torch.float64 for part, _ in sharing)
    signals, squares, largest = zip(*(sums for _, sums in sharing), strict=True)
    numbers = (sum(signals), sum(squares), max(largest), owner["power"], owner["memory"], part.floor)
    typed = map(np.float64 if double else np.float32, numbers)
    found = map(float, kernels.conclude(*typed))
    owner["rate"], owner["power"], owner["memory"], owner["signal"] = found
