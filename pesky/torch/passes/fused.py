"""The passes over dense CPU tensors, through compiled kernels that let go of the interpreter lock."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pesky.torch.passes import kernels
from pesky.torch.passes.bundle import BufferOf, Directed, Level, Means, Part, Sums
from pesky.torch.passes.single import go_along, sample_of, slope_of
from pesky.torch.settings import l2_of

__all__ = ["FusedBundle", "Move", "are_same", "is_fusible", "move"]

_WORTHWHILE = 8  # chunks a thread: below, handing work over costs more than it saves

_pools: dict[int, ThreadPoolExecutor] = {}
# A forked child has none of its parent's threads, only the record of them.
os.register_at_fork(after_in_child=_pools.clear)

_LATER = (0.0,) * 5  # settings that come with the pass that needs them

_TYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def is_fusible(part: Part) -> bool:
    """Whether kernels can work on the memory of these tensors as it is."""
    kept = [one for one in part.state.values() if isinstance(one, Tensor)]
    return part.rows is None and _are_alike([part.theta, part.gradient, *kept])


def _are_alike(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors have one of the types that kernels know, and lie in memory in order."""
    kind = tensors[0].dtype
    if kind not in _TYPES:
        return False
    for one in tensors:  # noqa: SIM110 -- `all` takes twice as long, many times a step
        if not (one.dtype == kind and one.is_cpu and one.is_contiguous()):
            return False
    return True


@lru_cache
def _chunks_of(sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the chunks of tensors of these sizes, in order: row, first entry, one after the last.

    They are the same in every step; nobody writes to them.
    """
    chunk = kernels.CHUNK
    cut = [
        (row, first, min(first + chunk, size))
        for row, size in enumerate(sizes)
        for first in range(0, size, chunk)
    ]
    return np.array(cut, np.int64).reshape(-1, 3)


def are_same(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether two tensors of equal shape are alike, in each pair."""
    at_once = []
    for pair in pairs:
        one, other = pair
        if _are_alike(pair):
            words = one.numel() * one.element_size() // 4
            at_once.append((one.data_ptr(), other.data_ptr(), words))
        elif not torch.equal(one, other.to(one.dtype)):
            return False
    return not at_once or bool(kernels.have_same_bits(np.array(at_once, np.int64)))


class Move(NamedTuple):
    """A parameter, its places, and how far its iterate goes along a direction."""

    theta: Tensor
    iterate: Tensor
    direction: Tensor
    average: Tensor
    scale: float

    @property
    def is_fusible(self) -> bool:
        """Whether a kernel can work on the memory of these tensors as it is."""
        return _are_alike(self[:4])


def move(moves: Sequence[Move], weight: float, shows_average: bool) -> bool:
    """Take iterates into averages, move them, and set parameters to one of both.

    All are fusible and of one type. Entries that would not be finite stay; return whether there are any.
    """
    kind = _TYPES[moves[0].theta.dtype]
    rows = [(*(one.data_ptr() for one in each[:4]), 0, 0, 0, each.theta.numel()) for each in moves]
    table = np.array(rows, np.int64)
    scales, weight_now = np.array([each.scale for each in moves], kind), kind(weight)
    chunks = _chunks_of(tuple(each.theta.numel() for each in moves))
    held = np.empty(len(chunks))
    _in_threads(
        lambda first, last: kernels.move_chunks(
            table, scales, weight_now, shows_average, chunks[first:last], held[first:last]
        ),
        len(chunks),
    )
    torch.autograd.graph.increment_version([each.theta for each in moves])
    return bool(held.any())


class FusedBundle:
    """Fusible parts of one type, laid out for kernels. See `pesky.torch.passes.bundle.Bundle`."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Note the addresses; the kernels see nothing else, so `parts` keeps the memory alive."""
        for part in parts:
            found, kind = part.curvature, part.theta.dtype
            if found is not None and (found.dtype != kind or not found.is_contiguous()):
                part.curvature = found.to(kind).contiguous()
        self.parts = parts
        self._table = np.array([_addresses(part) for part in parts], np.int64)
        self._settings = np.array([_numbers(part) for part in parts], _TYPES[parts[0].theta.dtype])
        self._chunks = _chunks_of(tuple(part.theta.numel() for part in parts))
        self._before: list[Tensor] | None = None  # mean gradients before `average`, if wanted

    def powers(self) -> tuple[float, float]:
        """Return sums of gradient^2 and of |curvature|."""
        power, bend = self._sums(kernels.sum_chunks, 2).sum(axis=0).tolist()
        return power, bend

    def observe(self, memories: Sequence[float]) -> list[Sums]:
        """Take one of the initial batches into all averages."""
        self._settings[:, kernels.MEMORY] = memories
        return self._sums_of_parts(kernels.observe_chunks)

    def update(self) -> bool:
        """Take a sample into the averages and step, each entry with a rate of its own."""
        return self._move(kernels.update_chunks)

    def direct(
        self, levels: Sequence[Level], buffer_of: BufferOf, slowed: bool
    ) -> tuple[Directed, Means]:
        """Take a sample into the averages, and write directions."""
        values = [buffer_of(part) for part in self.parts]
        expected = self._mean_gradients() if slowed else None
        self._table[:, kernels.DIRECTION] = [one.data_ptr() for one in values]
        self._settings[:, [kernels.LEVEL, kernels.INVERSE, kernels.WEIGHT]] = levels
        sums = self._sums(kernels.direct_chunks, 3)
        totals = np.add.reduceat(sums[:, 1:], self._starts())
        signals, squares = (totals.T / self._table[:, kernels.SIZE]).tolist()
        slopes = [float(sums[:, 0].sum())]
        return Directed(values, slopes, self._slowed(values, expected)), Means(signals, squares)

    def direct_alike(self, rates: Sequence[float], buffer_of: BufferOf) -> Directed:
        """Write directions with one rate a part."""
        values, slopes = [], []
        for part, rate in zip(self.parts, rates, strict=True):
            gradient, _ = sample_of(part, part.theta)
            values.append(torch.mul(gradient, rate, out=buffer_of(part)))
            slopes.append(rate * float((gradient * gradient).sum()))
        return Directed(values, slopes, self._slowed(values, self._before))

    def _mean_gradients(self) -> list[Tensor]:
        """Return copies of the mean gradients where an lr needs them after they have changed."""
        return [
            part.state["mean_gradient"].clone() if float(part.group["lr"]) != 1 else part.gradient
            for part in self.parts
        ]

    def _slowed(
        self, values: Sequence[Tensor], expected: Sequence[Tensor] | None
    ) -> list[tuple[float, float]] | None:
        if expected is None:
            return None
        found = []
        for part, value, before in zip(self.parts, values, expected, strict=True):
            lr = float(part.group["lr"])
            slope = slope_of(sample_of(part, part.theta)[0], value, lr)
            found.append((slope, 0.0 if lr == 1 else slope_of(before, value, lr * (1 - lr))))
        return found

    def slopes(self, directions: Sequence[Tensor | None], factors: Sequence[float]) -> list[float]:
        """Return gradient times direction, times a factor, of each part that has a direction."""
        return [
            slope_of(sample_of(part, part.theta)[0], value, factor)
            for part, value, factor in zip(self.parts, directions, factors, strict=True)
            if value is not None
        ]

    def go(self, directed: Directed, distances: Sequence[float], shares: Sequence[float]) -> bool:
        """Step along directions and let shares of parts decay; return whether entries stay."""
        steps = zip(self.parts, directed.values, distances, shares, strict=True)
        held = [go_along(*one) for one in steps]
        return any(held)

    def mixed(
        self, directed: Directed, scales: Sequence[float], shares: Sequence[float | None]
    ) -> Directed:
        """Return multiples of directions with shares of iterates."""
        for part, value, scale, share in zip(self.parts, directed.values, scales, shares, strict=True):
            if share is not None:
                value.mul_(scale).add_(part.state["iterate"], alpha=share)
        return directed

    def average(self, memories: Sequence[float], slowed: bool = False) -> list[Sums]:
        """Take a sample into g and h."""
        self._before = self._mean_gradients() if slowed else None
        self._settings[:, kernels.MEMORY] = memories
        return self._sums_of_parts(kernels.average_chunks)

    def descend(self, rates: Sequence[float]) -> bool:
        """Step with one rate a part."""
        self._settings[:, kernels.RATE] = rates
        return self._move(kernels.descend_chunks)

    def _move(self, kernel: Any) -> bool:
        held = self._sums(kernel, 1)
        # So that autograd notices where somebody goes on with a graph of the parameters before.
        torch.autograd.graph.increment_version([part.theta for part in self.parts])
        return bool(held.any())

    def _sums(self, kernel: Any, columns: int) -> NDArray[np.float64]:
        """Run a kernel that writes a row of sums for each chunk."""
        table, settings, chunks = self._table, self._settings, self._chunks
        sums = np.empty((len(chunks), columns))
        _in_threads(
            lambda first, last: kernel(table, settings, chunks[first:last], sums[first:last]),
            len(chunks),
        )
        return sums

    def _sums_of_parts(self, kernel: Any) -> list[Sums]:
        sums = self._sums(kernel, len(Sums._fields))
        if len(sums) > len(self.parts):
            starts = self._starts()
            totals = np.add.reduceat(sums, starts)
            totals[:, 2] = np.maximum.reduceat(sums[:, 2], starts)
            sums = totals
        return [Sums(*row) for row in sums.tolist()]

    def _starts(self) -> NDArray[np.int64]:
        """Return each part's first chunk."""
        return np.searchsorted(self._chunks[:, 0], np.arange(len(self.parts)))


def _addresses(part: Part) -> tuple[int, ...]:
    state, curvature = part.state, part.curvature
    square, memory = state.get("mean_square"), state["memory"]
    curvature_average = state.get("mean_curvature")
    return (
        part.theta.data_ptr(),
        part.gradient.data_ptr(),
        0 if curvature is None else curvature.data_ptr(),
        state["mean_gradient"].data_ptr(),
        0 if square is None else square.data_ptr(),
        0 if curvature_average is None else curvature_average.data_ptr(),
        memory.data_ptr() if isinstance(memory, Tensor) else 0,
        part.theta.numel(),
        0,  # the direction comes with the pass that needs it
    )


def _numbers(part: Part) -> tuple[float, ...]:
    group = part.group
    return (
        part.gradient_factor,
        part.curvature_factor,
        l2_of(group),
        float(group["lr"]),
        part.floor,
        *_LATER,
    )


def _in_threads(work: Callable[[int, int], Any], chunks: int) -> None:
    """Call `work(first, last)` so that together the calls cover all chunks, torch's threads at once."""
    threads = min(torch.get_num_threads(), chunks // _WORTHWHILE)
    if threads < 2:
        work(0, chunks)
        return
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="pesky")
    bounds = [chunks * k // threads for k in range(threads + 1)]
    others = [_pools[threads].submit(work, bounds[k], bounds[k + 1]) for k in range(threads - 1)]
    try:
        work(bounds[-2], bounds[-1])  # this thread does its share too
    finally:
        wait(others)  # whatever happens here, Ctrl-C too: they write to memory that others go on with
    for other in others:
        other.result()
