"""What one parameter brings to a step, and what can be done with many of them at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from pesky.torch.passes.extent import Extent

__all__ = [
    "OVERESTIMATED",
    "BufferOf",
    "Bundle",
    "Directed",
    "Level",
    "Means",
    "Part",
    "Start",
    "Sums",
    "overestimate",
    "statistics_type",
]


@dataclass(slots=True, eq=False)  # parts with the same numbers are not the same part
class Part:
    """A parameter with this step's gradient and curvature; its settings and its averages."""

    theta: Tensor
    gradient: Tensor
    curvature: Tensor | None  # None: not computed for this step, the average stays
    group: dict[str, Any]
    state: dict[str, Any]
    gradient_factor: float = 1.0  # 1 / scale under AMP
    curvature_factor: float = 1.0
    rows: Tensor | None = None  # of theta, which gradient and curvature are about; None: all
    floor: float = 0.0  # lower bound on the curvature; 0 is none


class Start(NamedTuple):
    """How a parameter begins."""

    batches: int  # that it sees without moving
    factor: float  # by which v (or l) and h are then overestimated
    even: bool  # whether all entries of a tensor then begin with its largest v and h


OVERESTIMATED = ("mean_square", "mean_curvature")


def overestimate(means: Tensor, start: Start, rows: int = 1) -> Tensor:
    """Return what v or h begins with after the initial batches; of several rows, each is on its own."""
    if start.even:
        by_row = means.reshape(rows, -1)
        means = by_row.amax(1, keepdim=True).expand_as(by_row).reshape(means.shape)
    return means * start.factor


class Sums(NamedTuple):
    """What a shared rate needs to know of one tensor."""

    signal: float  # sum of g^2
    square: float  # sum of gradient^2
    largest: float  # largest h


class Level(NamedTuple):
    """What the entries of a tensor have in common, in the robust dialect."""

    curvature: float  # of an entry whose gradients are of the usual size
    inverse_square: float  # 1 over the mean of v
    weight: float  # of a gradient in g and v: 1 over their memory


class Directed(NamedTuple):
    """What a pass that writes directions finds."""

    values: list[Tensor]  # the directions, one a part
    slopes: list[float]  # whose sum is that of gradient times direction
    # For each part lr times its slope, and of the slope that the mean gradient before this step
    # expected, how much an lr other than 1 wants left. None: nobody asked.
    slowed: list[tuple[float, float]] | None = None
    extents: list[Extent] | None = None  # one a part; None: not known


class Means(NamedTuple):
    """Means over the entries of each part."""

    signals: list[float]  # of g^2
    squares: list[float]  # of v


BufferOf: TypeAlias = Callable[[Part], Tensor]


class Bundle(Protocol):
    """Parts, and the passes over them that a step is made of: averages and parameters change in place.

    Lists of memories, rates and sums have one entry a part.
    """

    @property
    def parts(self) -> Sequence[Part]:
        """In order."""

    def powers(self) -> tuple[float, float]:
        """Return sums of gradient^2 and of |curvature|, which are finite only if every entry is."""

    def observe(self, memories: Sequence[float]) -> list[Sums]:
        """Take one of the initial batches into all averages."""

    def update(self) -> bool:
        """Take a sample into the averages and step, each entry with a rate of its own.

        Entries that would not be finite stay; return whether there are any.
        """

    def direct(
        self, levels: Sequence[Level], buffer_of: BufferOf, slowed: bool
    ) -> tuple[Directed, Means]:
        """Take a sample into g and v, and write directions; each entry has its own rate.

        `buffer_of` has memory for the direction of a part, which need not be used.
        """

    def direct_alike(self, rates: Sequence[float], buffer_of: BufferOf) -> Directed:
        """Write directions with one rate a part, after `average`."""

    def slopes(self, directions: Sequence[Tensor | None], factors: Sequence[float]) -> list[float]:
        """Return gradient times direction, times a factor, of each part that has a direction."""

    def go(self, directed: Directed, distances: Sequence[float], shares: Sequence[float]) -> bool:
        """Step along directions and let shares of parts decay; return whether entries stay.

        What decays is kept in the state, apart from the direction.
        """

    def mixed(
        self, directed: Directed, scales: Sequence[float], shares: Sequence[float | None]
    ) -> Directed:
        """Return multiples of directions with shares of iterates; None leaves a direction as it is."""

    def average(self, memories: Sequence[float], slowed: bool = False) -> list[Sums]:
        """Take a sample into g and h; `slowed` is for directions, see `Directed`."""

    def descend(self, rates: Sequence[float]) -> bool:
        """Step with one rate a part; return whether entries stay, as in `update`."""


def statistics_type(parameter: Tensor) -> torch.dtype:
    """Averages of half-precision parameters are kept in float32: small changes would be lost."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
