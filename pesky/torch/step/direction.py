"""The direction of a robust step: the paper's, with curvatures from the levels of tensors."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from pesky import rule
from pesky.torch.passes.bundle import BufferOf, Bundle, Directed, Level, Part, Start
from pesky.torch.passes.eager import EagerBundle
from pesky.torch.passes.extent import Extent
from pesky.torch.passes.rows import RowsBundle
from pesky.torch.step.levels import has_level, level_of, remember, take_level
from pesky.torch.step.parts import count, is_collecting
from pesky.torch.step.sharing import memories_of, shared_rates
from pesky.torch.step.start import collect

__all__ = ["Direction", "Leg", "Sorted", "direction_of", "foresee", "let_collect"]


class Leg(NamedTuple):
    """What one bundle brings to a direction."""

    bundle: Bundle
    directed: Directed


class Direction(NamedTuple):
    """Where to move, and the sum of gradient times direction."""

    legs: list[Leg]
    slope: float

    @property
    def parts(self) -> list[Part]:
        """Of all legs, in order."""
        return [part for leg in self.legs for part in leg.bundle.parts]

    @property
    def values(self) -> list[Tensor]:
        """The direction of each part."""
        return [value for leg in self.legs for value in leg.directed.values]

    @property
    def extents(self) -> list[Extent | None]:
        """How large the direction of each part is, where that is known."""
        found: list[Extent | None] = []
        for leg in self.legs:
            found += leg.directed.extents or [None] * len(leg.directed.values)
        return found


class Sorted(NamedTuple):
    """Bundles by what a step does with them."""

    moving: list[Bundle]
    by_rows: list[RowsBundle]  # sparse gradients: these follow the paper's rule, row by row


def let_collect(bundles: Sequence[Bundle | RowsBundle], start: Start) -> Sorted:
    """Let bundles collect that have initial batches to see; return the others."""
    plain = start._replace(factor=1.0, even=False)
    memory = max(rule.START_MEMORY, float(start.batches))
    moving: list[Bundle] = []
    by_rows: list[RowsBundle] = []
    for bundle in bundles:
        if isinstance(bundle, RowsBundle):
            by_rows.append(bundle)
        elif is_collecting(bundle.parts[0].state, start.batches):
            collect(bundle, plain, memory)
        else:
            moving.append(bundle)
            count(bundle)
    return Sorted(moving, by_rows)


def direction_of(bundles: Sequence[Bundle], buffer_of: BufferOf, slowed: bool = False) -> Direction:
    """Take this step's samples into the averages, and write directions, if need be into buffers.

    If it is `slowed`, what an lr other than 1 makes of slopes is wanted, too.
    """
    elements = [bundle for bundle in bundles if bundle.parts[0].group["granularity"] == "element"]
    sharing = [bundle for bundle in bundles if bundle.parts[0].group["granularity"] != "element"]
    for bundle in bundles:
        for part in bundle.parts:
            take_level(part)
            part.curvature = None  # its memory is free for the direction
    legs = []
    for bundle in elements:
        directed, means = bundle.direct(_levels_of(bundle), buffer_of, slowed)
        for part, *of_part in zip(bundle.parts, means.signals, means.squares, strict=True):
            remember(part.state, *of_part)
        legs.append(Leg(bundle, directed))
    shared = shared_rates(sharing, slowed) if sharing else []
    for bundle, rates in zip(sharing, shared, strict=True):
        legs.append(Leg(bundle, bundle.direct_alike(rates, buffer_of)))
    slope = 0.0
    for leg in legs:
        for one in leg.directed.slopes:
            slope += one
    return Direction(legs, slope)


def foresee(bundles: Sequence[Bundle | RowsBundle], start: Start) -> None:
    """Let bundles that can do so compute what a step will ask of them, before the host waits for any.

    Where something is measured, or collected, the step asks one thing after the other.
    """
    for bundle in bundles:
        if not isinstance(bundle, EagerBundle):
            continue
        bundle.expect_powers()
        first = bundle.parts[0]
        if is_collecting(first.state, start.batches):
            continue
        if first.group["granularity"] != "element":
            bundle.begin_average(memories_of(bundle))
        elif not has_level(first.state):
            bundle.begin_update()
        elif all(part.curvature is None for part in bundle.parts):
            bundle.begin_direct(_levels_of(bundle))


def _levels_of(bundle: Bundle) -> list[Level]:
    return [level_of(part.state, part.group) for part in bundle.parts]
