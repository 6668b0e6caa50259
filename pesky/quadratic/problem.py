"""The noisy quadratic itself: what it is made of, and how it changes with time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pesky.errors import InputError, check_count, check_number

__all__ = ["Array", "Booleans", "Landscape", "NoisyQuadratic"]

Array: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]
Values: TypeAlias = float | Sequence[float] | Array


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class NoisyQuadratic:
    """A diagonal quadratic with noise, and what changes about it every `change_every` steps.

    `curvature` (h), `noise` (sigma), `optimum` (theta*) and `start` are one number, or one number for
    each parameter. At each change every coordinate of the optimum moves by `optimum_jump` up or down, by
    a coin of its own; noise and curvature are multiplied by their factors at one change and divided
    by them at the next.

    Example:

    >>> from pesky.quadratic import SGD, NoisyQuadratic, simulate
    >>> problem = NoisyQuadratic(curvature=[1.0, 10.0], change_every=100, optimum_jump=3.0)
    >>> simulate(problem, SGD(0.05), steps=200, runs=10).excess_loss.shape
    (201, 10)
    """

    curvature: Values = 1.0
    noise: Values = 1.0
    optimum: Values = 0.0
    start: Values = 5.0
    change_every: int = 0  # 0: never
    optimum_jump: float = 0.0
    noise_factor: float = 1.0
    curvature_factor: float = 1.0

    def __post_init__(self) -> None:
        """Turn the four vectors into arrays of one length and refuse what makes no sense."""
        vectors = {name: _vector(name, getattr(self, name)) for name in _VECTORS}
        dimension = max(vector.size for vector in vectors.values())
        for name, vector in vectors.items():
            if vector.size not in (1, dimension):
                raise InputError(
                    f"{name} has {vector.size} values where others have {dimension}; "
                    "give one value, or one for each parameter"
                )
            object.__setattr__(self, name, np.broadcast_to(vector, dimension))
        if np.any(vectors["curvature"] <= 0):
            raise InputError(f"curvature must be above 0 everywhere; got {self.curvature}")
        if np.any(vectors["noise"] < 0):
            raise InputError(f"noise must not be negative; got {self.noise}")
        changing = {
            "change_every": check_count("change_every", self.change_every, least=0),
            "optimum_jump": check_number("optimum_jump", self.optimum_jump),
            "noise_factor": check_number("noise_factor", self.noise_factor, above=0),
            "curvature_factor": check_number("curvature_factor", self.curvature_factor, above=0),
        }
        for name, value in changing.items():
            object.__setattr__(self, name, value)
        changes = (self.optimum_jump, self.noise_factor, self.curvature_factor) != (0, 1, 1)
        if changes and not self.change_every:
            raise InputError(
                "change_every is 0, so the optimum_jump, noise_factor or curvature_factor given "
                "would never happen; set change_every to a number of steps"
            )

    @property
    def dimension(self) -> int:
        """Number of parameters, d."""
        return int(np.size(self.curvature))


_VECTORS = ("curvature", "noise", "optimum", "start")


def _vector(name: str, values: Values) -> Array:
    try:
        vector = np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number or a list of numbers; got {values!r}") from None
    if vector.ndim != 1 or vector.size == 0 or not np.all(np.isfinite(vector)):
        raise InputError(f"{name} must be a number or a flat list of finite ones; got {values!r}")
    return vector


@dataclass
class Landscape:
    """The problem as it is at one step: curvature and noise for all runs, an optimum for each."""

    curvature: Array
    noise: Array
    optimum: Array

    @classmethod
    def first(cls, problem: NoisyQuadratic, runs: int) -> "Landscape":
        """Before any change."""
        optimum = np.tile(np.asarray(problem.optimum), (runs, 1))
        return cls(np.asarray(problem.curvature), np.asarray(problem.noise), optimum)

    def change(self, problem: NoisyQuadratic, number: int, rng: np.random.Generator) -> None:
        """Apply change number 1, 2, ..."""
        sign = rng.choice((-1.0, 1.0), size=self.optimum.shape)
        self.optimum = self.optimum + problem.optimum_jump * sign
        odd = number % 2
        self.noise = np.asarray(problem.noise) * problem.noise_factor**odd
        self.curvature = np.asarray(problem.curvature) * problem.curvature_factor**odd

    def gradient(self, theta: Array, xi: Array) -> Array:
        """Gradient of one sample a run; `xi` is standard normal."""
        return self.curvature * (theta - self.optimum - self.noise * xi)

    def excess_loss(self, theta: Array) -> Array:
        """Return the expected loss of each run, less what is left at the optimum."""
        distance = theta - self.optimum
        return np.asarray(np.sum(self.curvature * distance * distance, axis=1) / 2)

    def noise_floor(self) -> float:
        """Return the expected loss at the optimum."""
        return float(np.sum(self.curvature * self.noise * self.noise)) / 2
