"""The passes over tensors of which a process has a part: what they find is summed over processes."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from pesky.torch.passes.bundle import Bundle, Directed, Level, Part, Sums
from pesky.torch.processes import largest_over, sums_over

__all__ = ["SpreadBundle"]

_Value = TypeVar("_Value")


class SpreadBundle:
    """Parts that are spread over processes. See `pesky.torch.passes.bundle.Bundle`.

    Some may have no entry here; they take part in the sums, for which every process sends one message.
    """

    def __init__(self, parts: Sequence[Part], here: Sequence[Bundle]) -> None:
        """Note bundles of the parts that have entries here, each of parts with one share."""
        self.parts = parts
        self._here = here
        (self._group,) = {part.spread.group for part in parts if part.spread is not None}

    def powers(self) -> tuple[float, float]:
        """Return sums of gradient^2 and of |curvature|, which are finite only if every entry is."""
        totals = [0.0, 0.0]
        for bundle in self._here:
            share = bundle.parts[0].share
            for k, value in enumerate(bundle.powers()):
                totals[k] += share * value
        power, bend = sums_over(totals, self._group)
        return power, bend

    def observe(self, memories: Sequence[float]) -> list[Sums]:
        """Take one of the initial batches into all averages."""
        return self._sums([one.observe(self._of(one, memories)) for one in self._here])

    def update(self) -> bool:
        """Take a sample into the averages and step, each entry with a rate of its own."""
        held = [one.update() for one in self._here]
        return any(held)

    def direct(self, levels: Sequence[Level], directions: Sequence[Tensor]) -> Directed:
        """Take a sample into the averages, and write directions."""
        slope, squares = 0.0, dict.fromkeys(self.parts, (0.0, 0.0))
        for one in self._here:
            found = one.direct(self._of(one, levels), self._of(one, directions))
            slope += found.slope * one.parts[0].share
            for part, *means in zip(one.parts, found.signals, found.mean_squares, strict=True):
                entries = part.theta.numel()
                squares[part] = (means[0] * entries, means[1] * entries)
        slope, *sums = sums_over(
            [slope, *self._shared(0, squares), *self._shared(1, squares)], self._group
        )
        count = len(self.parts)
        means = [
            total / max(1, part.entries)
            for total, part in zip(sums, [*self.parts, *self.parts], strict=True)
        ]
        return Directed(slope, means[:count], means[count:])

    def average(self, memories: Sequence[float]) -> list[Sums]:
        """Take a sample into g and h."""
        return self._sums([one.average(self._of(one, memories)) for one in self._here])

    def descend(self, rates: Sequence[float]) -> bool:
        """Step with one rate a part."""
        held = [one.descend(self._of(one, rates)) for one in self._here]
        return any(held)

    def _of(self, bundle: Bundle, values: Sequence[_Value]) -> list[_Value]:
        """Return those of values, one a part, that belong to the parts of a bundle."""
        known = dict(zip(self.parts, values, strict=True))
        return [known[part] for part in bundle.parts]

    def _shared(self, column: int, rows: Mapping[Part, tuple[float, ...]]) -> list[float]:
        """Return a column of what was found of each part, times its share."""
        return [rows[part][column] * part.share for part in self.parts]

    def _sums(self, found: Sequence[Sequence[Sums]]) -> list[Sums]:
        rows: dict[Part, tuple[float, ...]] = dict.fromkeys(self.parts, (0.0, 0.0, 0.0))
        for bundle, sums in zip(self._here, found, strict=True):
            rows |= zip(bundle.parts, sums, strict=True)
        totals = sums_over([*self._shared(0, rows), *self._shared(1, rows)], self._group)
        largest = largest_over([rows[part][2] for part in self.parts], self._group)
        count = len(self.parts)
        return [Sums(*row) for row in zip(totals[:count], totals[count:], largest, strict=True)]
