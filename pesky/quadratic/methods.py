"""What a method is to the simulation, and the methods that estimate nothing: SGD and the oracle."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np

from pesky.errors import InputError, check_number
from pesky.quadratic import oracle
from pesky.quadratic.problem import Array, Booleans, Landscape, NoisyQuadratic

__all__ = ["SGD", "DrawGradient", "Method", "Oracle", "Stepper"]


class Stepper(Protocol):
    """One method at work on all runs; made by `Method.begin`."""

    def rates(self, landscape: Landscape, theta: Array, gradient: Array) -> Array:
        """Return this step's rates, of any shape that broadcasts to (runs, parameters)."""
        ...

    def accept(self, accepted: Booleans) -> None:
        """Learn from the sample that `rates` was given last, in the runs that could use it.

        `accepted` is a column of booleans; the other runs dropped the sample.
        """
        ...


# Called with a factor, returns gradients at the starting point, one a run, and a column of booleans:
# whether the gradient's squared length times the factor is finite. Where it is not the gradient is 0.
DrawGradient: TypeAlias = Callable[[float], tuple[Array, Booleans]]


class Method(Protocol):
    """A way to choose the learning rate."""

    @property
    def name(self) -> str:
        """Return what tables and legends call it."""
        ...

    def begin(self, problem: NoisyQuadratic, runs: int, draw: DrawGradient) -> Stepper:
        """Start; `draw` gives gradients at the starting point, for methods that look first."""
        ...


@dataclass(frozen=True)
class SGD:
    """A rate fixed in advance: eta0, eta0/t (``cooling="1/t"``) or eta0 / (1 + gamma t).

    In eta0/t the first step has t = 1, in eta0 / (1 + gamma t) it has t = 0.
    """

    eta0: float
    gamma: float = 0.0
    cooling: Literal["none", "1/t"] = "none"

    def __post_init__(self) -> None:
        """Refuse rates that are not positive."""
        object.__setattr__(self, "eta0", check_number("eta0", self.eta0, above=0))
        object.__setattr__(self, "gamma", check_number("gamma", self.gamma, least=0))
        if self.cooling not in ("none", "1/t"):
            raise InputError(f"cooling must be 'none' or '1/t'; got {self.cooling!r}")
        if self.cooling == "1/t" and self.gamma:
            raise InputError(f"gamma must be 0 with cooling='1/t'; got {self.gamma!r}")

    @property
    def name(self) -> str:
        """The schedule as a formula; different schedules have different names."""
        rate = f"SGD {_all_digits(self.eta0)}"
        if self.cooling == "1/t":
            return f"{rate}/t"
        return f"{rate}/(1+{_all_digits(self.gamma)}t)" if self.gamma else rate

    def begin(self, problem: NoisyQuadratic, runs: int, draw: DrawGradient) -> Stepper:
        """Start counting steps."""
        return _Schedule(self)


def _all_digits(number: float) -> str:
    return repr(number).removesuffix(".0")


@dataclass
class _Schedule:
    method: SGD
    steps_taken: int = 0

    def rates(self, landscape: Landscape, theta: Array, gradient: Array) -> Array:
        """Return the scheduled rate."""
        time = self.steps_taken
        slower = 1 + (time if self.method.cooling == "1/t" else self.method.gamma * time)
        return np.full((1, 1), self.method.eta0 / slower)

    def accept(self, accepted: Booleans) -> None:
        """Count the step, also where its sample was dropped: a schedule goes by the clock."""
        self.steps_taken += 1


@dataclass(frozen=True)
class Oracle:
    """The best rate for the next step, computed from what no learner knows: theta* and sigma."""

    granularity: Literal["element", "global"] = "element"

    def __post_init__(self) -> None:
        """Refuse unknown granularities."""
        if self.granularity not in ("element", "global"):
            raise InputError(f"granularity must be 'element' or 'global'; got {self.granularity!r}")

    @property
    def name(self) -> str:
        """oracle-l or oracle-g."""
        return {"element": "oracle-l", "global": "oracle-g"}[self.granularity]

    def begin(self, problem: NoisyQuadratic, runs: int, draw: DrawGradient) -> Stepper:
        """Nothing to prepare."""
        return self

    def rates(self, landscape: Landscape, theta: Array, gradient: Array) -> Array:
        """Return the rates that most decrease the expected loss."""
        curvature, distance = landscape.curvature, theta - landscape.optimum
        if self.granularity == "element":
            return np.asarray(oracle.ideal_rate(distance, curvature, landscape.noise))
        signal, power = oracle.ideal_moments(distance, curvature, landscape.noise)
        sums = (np.sum(part, axis=1, keepdims=True) for part in (signal, power, curvature * power))
        return np.asarray(oracle.ideal_global_rate(*sums))

    def accept(self, accepted: Booleans) -> None:
        """Nothing to learn."""
