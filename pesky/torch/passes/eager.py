"""The passes over tensors of any device and type, in grouped operations of torch.

Their number does not grow with that of the tensors, and numbers that the host needs come in one
transfer (`reading.py`). So a pass can begin before it is known whether it may be done: what it computes
replaces averages only when it is asked for. That is as fast as to change them in place, and takes
memory for what is new.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from pesky import rule
from pesky.direction import relative_square
from pesky.torch.passes import grouped
from pesky.torch.passes.bundle import (
    BufferOf,
    Directed,
    Level,
    Means,
    Part,
    Sums,
)
from pesky.torch.passes.extent import Extent, extents_of, step_within
from pesky.torch.passes.reading import Expected, Reading
from pesky.torch.settings import decoupled_of, l2_of

__all__ = ["ELEMENT_AVERAGES", "EagerBundle", "curvature_at", "update_of"]

ELEMENT_AVERAGES = ("mean_gradient", "mean_square", "mean_curvature", "memory")


class _Begun(NamedTuple):
    """A pass that has been computed; nothing has been changed yet."""

    asked: object  # what it was called with
    averages: dict[str, list[Tensor]]  # the new ones, of all parts or none
    values: list[Tensor]  # directions
    numbers: dict[str, Expected]  # each with one or two numbers a part


class EagerBundle:
    """See `pesky.torch.passes.bundle.Bundle`; all parts are of one type and on one device."""

    def __init__(self, parts: Sequence[Part], reading: Reading | None = None) -> None:
        """Compute gradients and curvatures, L2 included, in the type of the averages."""
        self.parts = parts
        self._reading = Reading() if reading is None else reading
        self._gradients = self._wide_gradients()
        self._curved = [part for part in parts if part.curvature is not None]
        self._curvatures = self._wide_curvatures()
        self._powers: tuple[Expected, Expected] | None = None
        self._begun: _Begun | None = None
        self._followed: Expected | None = None
        self._averages: dict[str, list[float]] = {}  # numbers of the last `average`

    # --- What comes in ---------------------------------------------------------------------------------

    def _state(self, name: str) -> list[Tensor]:
        return [part.state[name] for part in self.parts]

    def _thetas(self) -> list[Tensor]:
        """Return parameters in the type of the averages."""
        return grouped.widened([part.theta for part in self.parts], self._state("mean_gradient"))

    def _wide_gradients(self) -> list[Tensor]:
        gradients = grouped.widened([part.gradient for part in self.parts], self._state("mean_gradient"))
        factors = [part.gradient_factor for part in self.parts]
        if any(factor != 1 for factor in factors):
            gradients = list(torch._foreach_mul(gradients, factors))
        decays = [l2_of(part.group) for part in self.parts]
        if any(decays):
            penalties = torch._foreach_mul(self._thetas(), decays)
            gradients = list(torch._foreach_add(gradients, penalties))
        return gradients

    def _wide_curvatures(self) -> list[Tensor]:
        if not self._curved:
            return []
        found = grouped.widened(
            [part.curvature for part in self._curved if part.curvature is not None],
            [part.state["mean_gradient"] for part in self._curved],
        )
        found = list(torch._foreach_mul(found, [part.curvature_factor for part in self._curved]))
        torch._foreach_abs_(found)
        torch._foreach_add_(found, [l2_of(part.group) for part in self._curved])
        return found

    # --- Whether it may be used, and what is asked of passes before that is known ----------------------

    def expect_powers(self) -> None:
        """Let the numbers of `powers` be on their way."""
        if self._powers is None:
            expect = self._reading.expect
            squares = expect(grouped.norms(self._gradients, 2))
            self._powers = squares, expect(grouped.norms(self._curvatures, 1))

    def powers(self) -> tuple[float, float]:
        """Return sums of gradient^2 and of |curvature|."""
        self.expect_powers()
        assert self._powers is not None
        squares, bends = self._powers
        return sum(_squared(squares.get())), sum(bends.get())

    def begin_update(self) -> None:
        """Compute what `update` will ask for."""
        self._begun = self._updated()

    def begin_direct(self, levels: Sequence[Level]) -> None:
        """Compute what `direct` will ask for."""
        self._begun = self._directed(levels)

    def begin_average(self, memories: Sequence[float]) -> None:
        """Compute what `average` will ask for."""
        self._begun = self._averaged(memories)

    def begin_slopes(self, directions: Sequence[Tensor | None]) -> None:
        """Compute what `slopes` will ask for."""
        pairs = zip(self._gradients, directions, strict=True)
        there = [(gradient, value) for gradient, value in pairs if value is not None]
        ones, others = [one for one, _ in there], [value for _, value in there]
        self._followed = self._reading.expect(grouped.products(ones, others) if there else [])

    def _taken(self, asked: object) -> _Begun | None:
        """Return the pass that has begun, if it is the one that is asked for."""
        begun, self._begun = self._begun, None
        return begun if begun is not None and begun.asked == asked else None

    def _replace(self, begun: _Begun) -> None:
        """Let the new averages be the averages."""
        for name, tensors in begun.averages.items():
            for part, tensor in zip(self.parts, tensors, strict=True):
                part.state[name] = tensor

    # --- Initial batches -------------------------------------------------------------------------------

    def observe(self, memories: Sequence[float]) -> list[Sums]:
        """Take one of the initial batches into all averages."""
        if "mean_square" in self.parts[0].state:
            squares = torch._foreach_mul(self._gradients, self._gradients)
            torch._foreach_lerp_(self._state("mean_square"), squares, _inverses(memories))
        return self.average(memories)

    # --- A rate for each entry, in the paper's dialect -------------------------------------------------

    def update(self) -> bool:
        """Take a sample into the averages and step, each entry with a rate of its own."""
        begun = self._taken(ELEMENT_AVERAGES) or self._updated()
        extents = extents_of({name: numbers.get() for name, numbers in begun.numbers.items()})
        self._replace(begun)
        return self._step(begun.values, self._lrs(), extents)

    def _updated(self) -> _Begun:
        """Compute `rule.element_update` of all tensors, and the paper's steps."""
        g, v, h, tau = (self._state(name) for name in ELEMENT_AVERAGES)
        g = grouped.averaged(g, self._gradients, tau)
        v = grouped.averaged(v, torch._foreach_mul(self._gradients, self._gradients), tau)
        bends = dict(zip(map(id, self._curved), self._curvatures, strict=True))
        if bends:  # an average does not move towards itself
            pairs = zip(self.parts, h, strict=True)
            h = grouped.averaged(h, [bends.get(id(part), mean) for part, mean in pairs], tau)
        ratios = grouped.ratios_of(g, v)
        tau = list(torch._foreach_addcmul(tau, ratios, tau, value=-1.0))
        torch._foreach_clamp_min_(tau, 1.0)
        torch._foreach_add_(tau, 1.0)
        floored = torch._foreach_clamp_min(h, [part.floor for part in self.parts])
        steps = grouped.rates_from(ratios, floored)
        torch._foreach_mul_(steps, self._gradients)
        averages = dict(zip(ELEMENT_AVERAGES, (g, v, h, tau), strict=True))
        return _Begun(ELEMENT_AVERAGES, averages, steps, self._extents(steps))

    # --- A rate for each entry, in the robust dialect --------------------------------------------------

    def direct(
        self, levels: Sequence[Level], buffer_of: BufferOf, slowed: bool
    ) -> tuple[Directed, Means]:
        """Take a sample into the averages, and write directions."""
        begun = self._taken(list(levels)) or self._directed(levels)
        numbers = {name: expected.get() for name, expected in begun.numbers.items()}
        self._replace(begun)
        self._curvatures = []
        entries = [part.theta.numel() for part in self.parts]
        signals = zip(_squared(numbers["signals"]), entries, strict=True)
        squares = zip(numbers["squares"], entries, strict=True)
        means = Means([one / n for one, n in signals], [one / n for one, n in squares])
        slopes, extents = numbers["slopes"], extents_of(numbers)
        spared = self._spared(slopes, numbers["expected"]) if slowed else None
        return Directed(begun.values, slopes, spared, extents), means

    def _directed(self, levels: Sequence[Level]) -> _Begun:
        """Compute `follow_gradient` of all tensors, and directions."""
        weights = [level.weight for level in levels]
        before = self._state("mean_gradient")
        g = torch._foreach_lerp(before, self._gradients, weights)
        squares = torch._foreach_mul(self._gradients, self._gradients)
        v = torch._foreach_lerp(self._state("mean_square"), squares, weights)
        directions = self.rates(grouped.ratios_of(g, v), list(v), levels)
        torch._foreach_mul_(directions, self._gradients)
        expect = self._reading.expect
        numbers = {
            "signals": expect(grouped.norms(g, 2)),
            "squares": expect(grouped.norms(v, 1)),
            # Rates are not negative, so neither is an entry's share of the slope.
            "slopes": expect(grouped.norms(torch._foreach_mul(directions, self._gradients), 1)),
            "expected": self._expected(before, directions),
        }
        averages = {"mean_gradient": list(g), "mean_square": list(v)}
        return _Begun(list(levels), averages, directions, numbers | self._extents(directions))

    def rates(
        self, ratios: list[Tensor], mean_squares: list[Tensor], levels: Sequence[Level]
    ) -> list[Tensor]:
        """Return the rates of entries in a direction, from g^2/v, which is used up, v and levels.

        That is `rule.learning_rate` of `curvature_at`, whose smallest entry is the level: where the
        square of that underflows, the whole tensor rests.
        """
        curvatures = torch._foreach_mul(mean_squares, [level.inverse_square for level in levels])
        torch._foreach_clamp_min_(curvatures, 1.0)
        torch._foreach_sqrt_(curvatures)
        torch._foreach_div_(ratios, curvatures)
        tiny = torch.finfo(mean_squares[0].dtype).tiny
        bends = [one.curvature for one in levels]
        torch._foreach_mul_(ratios, [0.0 if bend * bend < tiny else 1 / bend for bend in bends])
        return list(ratios)

    # --- One rate a tensor -----------------------------------------------------------------------------

    def average(self, memories: Sequence[float], slowed: bool = False) -> list[Sums]:
        """Take a sample into g and h."""
        begun = self._taken(list(memories)) or self._averaged(memories)
        signals, squares = (_squared(begun.numbers[name].get()) for name in ("signals", "squares"))
        largest = begun.numbers["curvatures"].get() or [0.0] * len(self.parts)
        self._averages = {name: numbers.get() for name, numbers in begun.numbers.items()}
        self._replace(begun)
        return [Sums(*sums) for sums in zip(signals, squares, largest, strict=True)]

    def _averaged(self, memories: Sequence[float]) -> _Begun:
        weights = _inverses(memories)
        g = list(torch._foreach_lerp(self._state("mean_gradient"), self._gradients, weights))
        averages = {"mean_gradient": g}
        if "mean_curvature" in self.parts[0].state:
            averages["mean_curvature"] = self._averaged_curvatures(weights)
        expect = self._reading.expect
        numbers = {
            "signals": expect(grouped.norms(g, 2)),
            "squares": expect(grouped.norms(self._gradients, 2)),
            "curvatures": expect(grouped.norms(averages.get("mean_curvature", []), inf)),
            "expected": self._expected(self._state("mean_gradient"), self._gradients),
        }
        return _Begun(list(memories), averages, [], numbers | self._extents(self._gradients))

    def _averaged_curvatures(self, weights: Sequence[float]) -> list[Tensor]:
        """Return the averages of curvature, moved where there is a new one."""
        bends = dict(zip(map(id, self._curved), self._curvatures, strict=True))
        h = self._state("mean_curvature")
        if not bends:
            return h
        pairs = zip(self.parts, h, strict=True)
        return list(torch._foreach_lerp(h, [bends.get(id(part), mean) for part, mean in pairs], weights))

    def direct_alike(self, rates: Sequence[float], buffer_of: BufferOf) -> Directed:
        """Write directions with one rate a part."""
        numbers = self._averages
        slopes = [rate * one for rate, one in zip(rates, _squared(numbers["squares"]), strict=True)]
        values = list(torch._foreach_mul(self._gradients, list(rates)))
        extents = [one.times(rate) for one, rate in zip(extents_of(numbers), rates, strict=True)]
        expected = [rate * one for rate, one in zip([*rates] * 2, numbers["expected"], strict=False)]
        return Directed(values, slopes, self._spared(slopes, expected), extents)

    def descend(self, rates: Sequence[float]) -> bool:
        """Step with one rate a part."""
        distances = [lr * rate for lr, rate in zip(self._lrs(), rates, strict=True)]
        extents = extents_of(self._averages) if self._averages else None
        return self._step(self._gradients, distances, extents)

    # --- Without second evaluations --------------------------------------------------------------------

    def _expected(self, before: list[Tensor], directions: list[Tensor]) -> Expected:
        """Let products of directions with the mean gradients come, where an lr needs them."""
        is_slowed = any(lr != 1 for lr in self._lrs())
        return self._reading.expect(grouped.products(before, directions) if is_slowed else [])

    def _spared(self, slopes: Sequence[float], expected: Sequence[float]) -> list[tuple[float, float]]:
        before = grouped.sums_of_products(expected) or [0.0] * len(slopes)
        found = zip(self._lrs(), slopes, before, strict=True)
        return [(lr * slope, lr * (1 - lr) * mean) for lr, slope, mean in found]

    def slopes(self, directions: Sequence[Tensor | None], factors: Sequence[float]) -> list[float]:
        """Return gradient times direction, times a factor, of each part that has a direction."""
        if self._followed is None:
            self.begin_slopes(directions)
        assert self._followed is not None
        there = [k for k, value in enumerate(directions) if value is not None]
        sums = grouped.sums_of_products(self._followed.get())
        return [factors[k] * one for k, one in zip(there, sums, strict=True)]

    def go(self, directed: Directed, distances: Sequence[float], shares: Sequence[float]) -> bool:
        """Step along directions and let shares of parts decay; return whether entries stay."""
        for part in self.parts:
            part.state.pop("decayed", None)
        if not any(shares):
            return self._step(directed.values, list(distances), directed.extents)
        decayed = torch._foreach_mul(self._thetas(), list(shares))
        for part, value, share in zip(self.parts, decayed, shares, strict=True):
            if share > 0:
                part.state["decayed"] = value
        steps = torch._foreach_mul(directed.values, list(distances))
        torch._foreach_add_(steps, decayed)
        known = zip(directed.extents or [], distances, shares, strict=False)
        extents = [one.times(distance).joined(share) for one, distance, share in known]
        return self._step(list(steps), [1.0] * len(steps), extents or None)

    def mixed(
        self, directed: Directed, scales: Sequence[float], shares: Sequence[float | None]
    ) -> Directed:
        """Return multiples of directions with shares of iterates."""
        factors = [1.0 if share is None else scale for scale, share in zip(scales, shares, strict=True)]
        taken = [share or 0.0 for share in shares]
        values = torch._foreach_mul(directed.values, factors)
        torch._foreach_add_(values, torch._foreach_mul(self._state("iterate"), taken))
        known = zip(directed.extents or [], factors, taken, strict=False)
        extents = [one.times(factor).joined(share) for one, factor, share in known]
        return directed._replace(values=list(values), extents=extents or None)

    # --- Moving ----------------------------------------------------------------------------------------

    def _lrs(self) -> list[float]:
        return [float(part.group["lr"]) for part in self.parts]

    def _extents(self, directions: list[Tensor]) -> dict[str, Expected]:
        """Let the numbers of an `Extent` be on their way."""
        is_decaying = any(decoupled_of(part.group) > 0 for part in self.parts)
        expect = self._reading.expect
        return {
            "largest": expect(grouped.norms(directions, inf)),
            "lengths": expect(grouped.norms(directions if is_decaying else [], 2)),
            "reach": expect(grouped.norms([part.theta for part in self.parts], inf)),
        }

    def _step(self, values: list[Tensor], distances: list[float], extents: list[Extent] | None) -> bool:
        thetas = [part.theta for part in self.parts]
        return step_within(thetas, self._thetas(), values, distances, extents)


def _inverses(memories: Sequence[float]) -> list[float]:
    return [1 / memory for memory in memories]


def _squared(numbers: Sequence[float]) -> list[float]:
    return [number * number for number in numbers]


def update_of(
    part: Part, gradient: Tensor, curvature: Tensor | None, g: Tensor, v: Tensor, h: Tensor, tau: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the rate and the new averages of some entries of a part."""
    floor = h.new_full((), part.floor)  # a plain number times a comparison would become float32
    bend = h if curvature is None else curvature  # an average does not move towards itself
    return rule.element_update(gradient, bend, g, v, h, tau, floor)


def curvature_at(level: Level, mean_square: Tensor) -> Tensor:
    """Return the curvature of every entry, from the level of its tensor."""
    inverse = mean_square.new_full((), level.inverse_square)
    relative: Tensor = relative_square(mean_square, inverse)
    return level.curvature * relative.sqrt()
