"""vSGD on the noisy quadratic: Algorithm 1 and its block-wise and global forms, all runs at once."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pesky import rule
from pesky.errors import InputError, check_count, check_number
from pesky.quadratic.methods import DrawGradient, Stepper
from pesky.quadratic.problem import Array, Booleans, Landscape, NoisyQuadratic

__all__ = ["VSGD"]

Granularity: TypeAlias = Literal["element", "block", "global"]

MOST_INITIAL_SAMPLES = 1_000_000  # minutes of work before the first step


@dataclass(frozen=True)
class VSGD:
    """The paper's method: vSGD-l, -b, -g for granularity element, block, global.

    Args:
        granularity: what shares a rate: nothing ("element"), a block of parameters, or all ("global").
        blocks: the sizes of consecutive blocks of parameters, for granularity "block" only.
        curvature: the landscape's ("known"), or the running average of the samples' curvatures,
            overestimated by `slow_start` at first ("estimated").
        init_samples: gradients that are averaged before the first step.
        slow_start: the paper's C, which the toy problems do not need.
        curvature_floor: rates treat a curvature below it as equal to it.

    Example:

    >>> from pesky.quadratic import VSGD, NoisyQuadratic, simulate
    >>> trace = simulate(NoisyQuadratic(), VSGD(), steps=300, runs=100)
    >>> bool(trace.rate[-1].mean() < trace.rate[0].mean() / 10)
    True
    """

    granularity: Granularity = "element"
    blocks: tuple[int, ...] = ()
    curvature: Literal["known", "estimated"] = "known"
    init_samples: int = 10
    slow_start: float = 1.0
    curvature_floor: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.granularity not in ("element", "block", "global"):
            raise InputError(
                f"granularity must be 'element', 'block' or 'global'; got {self.granularity!r}"
            )
        object.__setattr__(self, "blocks", _sizes(self.blocks))
        if bool(self.blocks) != (self.granularity == "block"):
            raise InputError(
                "blocks (sizes of consecutive blocks) go with granularity='block' and only with it; "
                f"got blocks={self.blocks!r}, granularity={self.granularity!r}"
            )
        if self.curvature not in ("known", "estimated"):
            raise InputError(f"curvature must be 'known' or 'estimated'; got {self.curvature!r}")
        samples = check_count("init_samples", self.init_samples, most=MOST_INITIAL_SAMPLES)
        object.__setattr__(self, "init_samples", samples)
        check_number("slow_start", self.slow_start, least=1)
        if self.curvature_floor is not None:
            check_number("curvature_floor", self.curvature_floor, above=0)

    @property
    def name(self) -> str:
        """The paper's name."""
        letter = {"element": "l", "block": "b", "global": "g"}[self.granularity]
        return f"vSGD-{letter}"

    def begin(self, problem: NoisyQuadratic, runs: int, draw: DrawGradient) -> Stepper:
        """Average the initial samples; the parameters do not move."""
        dimension = problem.dimension
        if self.blocks and sum(self.blocks) != dimension:
            raise InputError(
                f"blocks must add up to the {dimension} parameters; got {self.blocks!r}, "
                f"which is {sum(self.blocks)}"
            )
        sizes = {
            "element": (1,) * dimension,
            "block": self.blocks,
            "global": (dimension,),
        }[self.granularity]
        blocks = _Blocks(sizes)
        mean_gradient = np.zeros((runs, dimension))
        power = np.zeros((runs, len(sizes)))
        samples = np.zeros((runs, 1))
        for _ in range(self.init_samples):
            gradient, usable = draw(self.slow_start)
            samples += usable
            count = np.maximum(samples, 1)
            mean_gradient = _update_where(usable, mean_gradient, gradient, count)
            power = _update_where(usable, power, blocks.total(gradient * gradient), count)
        curvature = np.tile(np.asarray(problem.curvature), (runs, 1))
        memory = np.full_like(power, rule.START_MEMORY)
        statistics = _Statistics(
            mean_gradient, power * self.slow_start, curvature * self.slow_start, memory
        )
        return _Adaptive(self, blocks, statistics)


def _sizes(blocks: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(check_count("blocks", size) for size in blocks)
    except TypeError:
        raise InputError(f"blocks must be a list of sizes, such as (2, 1); got {blocks!r}") from None


def _update_where(usable: Booleans, mean: Array, sample: Array, memory: Array) -> Array:
    return np.where(usable, rule.average(mean, sample, memory), mean)


@dataclass(frozen=True)
class _Blocks:
    """Consecutive parameters that share a rate."""

    sizes: tuple[int, ...]

    def total(self, values: Array) -> Array:
        return np.add.reduceat(values, self._starts, axis=1)

    def largest(self, values: Array) -> Array:
        return np.maximum.reduceat(values, self._starts, axis=1)

    def spread(self, values: Array) -> Array:
        """One value a block to one value a parameter."""
        return np.repeat(values, self.sizes, axis=1)

    @property
    def _starts(self) -> NDArray[np.intp]:
        return np.cumsum((0, *self.sizes[:-1]), dtype=np.intp)


class _Statistics(NamedTuple):
    mean_gradient: Array  # g, a parameter each
    power: Array  # v or l, a block each
    mean_curvature: Array  # h, a parameter each
    memory: Array  # tau, a block each


@dataclass
class _Adaptive:
    method: VSGD
    blocks: _Blocks
    statistics: _Statistics
    updated: _Statistics = field(init=False)  # the same with the latest sample taken in

    def rates(self, landscape: Landscape, theta: Array, gradient: Array) -> Array:
        """Return Algorithm 1's rates; its new averages wait for `accept`."""
        old = self.statistics
        curvature = np.broadcast_to(landscape.curvature, gradient.shape)
        if self.method.curvature == "known":
            old = old._replace(mean_curvature=curvature)
        if self.method.granularity == "element":
            rate, *updated = rule.element_update(gradient, curvature, *old, self.method.curvature_floor)
            self.updated = _Statistics(*updated)
        else:
            rate, self.updated = self._block_update(gradient, curvature, old)
        return self.blocks.spread(rate)

    def accept(self, accepted: Booleans) -> None:
        """Keep the new averages of the accepted runs and the old ones of the others."""
        pairs = zip(self.updated, self.statistics, strict=True)
        self.statistics = _Statistics(*(np.where(accepted, new, old) for new, old in pairs))

    def _block_update(
        self, gradient: Array, curvature: Array, old: _Statistics
    ) -> tuple[Array, _Statistics]:
        memory = self.blocks.spread(old.memory)
        mean_gradient = rule.average(old.mean_gradient, gradient, memory)
        power = rule.average(old.power, self.blocks.total(gradient * gradient), old.memory)
        mean_curvature = rule.average(old.mean_curvature, abs(curvature), memory)
        ratio = rule.noise_ratio(self.blocks.total(mean_gradient * mean_gradient), power)
        largest = rule.at_least(self.blocks.largest(mean_curvature), self.method.curvature_floor)
        rate = rule.learning_rate(ratio, largest)
        new_memory = rule.next_memory(old.memory, ratio)
        return rate, _Statistics(mean_gradient, power, mean_curvature, new_memory)
