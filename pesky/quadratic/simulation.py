"""Follow a method through many independent runs of a noisy quadratic."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pesky import rule
from pesky.errors import InputError, check_count
from pesky.quadratic.methods import Method
from pesky.quadratic.problem import Array, Booleans, Landscape, NoisyQuadratic

__all__ = ["Trace", "check_size", "simulate"]

MOST_BYTES = 16 * 2**30  # of all traces held at once

_STEPS_AT_WORK = 10  # the arrays of a method at work are as large as this many steps of its trace

# A rate that is too large sends a run to infinity: shown by the numbers, not warned of.
_quiet = np.errstate(over="ignore", invalid="ignore")


@dataclass(frozen=True)
class Trace:
    """What happened: entry t of a trace is the state before step t + 1, after any change due then.

    The last entry is the state after the last step; no change follows it.
    """

    name: str
    excess_loss: Array  # (steps + 1, runs): expected loss less the noise floor
    noise_floor: Array  # (steps + 1,): expected loss at the optimum
    rate: Array  # (steps, runs, parameters): 0 where the sample was rejected
    position: Array  # (steps + 1, runs, parameters): theta
    rejected: NDArray[np.int64]  # (runs,): samples dropped because something was not finite

    @property
    @_quiet
    def loss(self) -> Array:
        """Expected loss, (steps + 1, runs)."""
        return self.excess_loss + self.noise_floor[:, None]

    @_quiet
    def median_excess(self) -> Array:
        """Excess loss at each step, median over runs."""
        return np.median(self.excess_loss, axis=1)

    @_quiet
    def median_rate(self) -> Array:
        """Rate at each step, median over runs and parameters."""
        return np.median(self.rate, axis=(1, 2))


def check_size(problem: NoisyQuadratic, *, steps: int, runs: int, traces: int = 1) -> tuple[int, int]:
    """Return `steps` and `runs` as integers, or raise if so many traces cannot be held in memory."""
    steps, runs = check_count("steps", steps), check_count("runs", runs)
    a_step = runs * (1 + 2 * problem.dimension)  # loss; rate and position
    numbers = (steps + _STEPS_AT_WORK) * a_step
    if 8 * numbers * traces > MOST_BYTES:
        raise InputError(
            f"steps={steps} and runs={runs}, times {traces} for the methods, would need more than "
            f"{MOST_BYTES // 2**30} GiB of memory; ask for fewer"
        )
    return steps, runs


@_quiet
def simulate(
    problem: NoisyQuadratic, method: Method, *, steps: int = 1000, runs: int = 1000, seed: int = 0
) -> Trace:
    """Run `method` on `problem`. Methods given the same seed meet the same samples and changes."""
    steps, runs = check_size(problem, steps=steps, runs=runs)
    seed = check_count("seed", seed, least=0)
    shape = (runs, problem.dimension)
    first, samples, changes = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    landscape = Landscape.first(problem, runs)
    theta = np.tile(np.asarray(problem.start), (runs, 1))
    rejected = np.zeros(runs, dtype=np.int64)

    def draw(rng: np.random.Generator, factor: float) -> tuple[Array, Booleans]:
        gradient = landscape.gradient(theta, rng.standard_normal(shape))
        power = factor * np.sum(gradient * gradient, axis=1, keepdims=True)
        usable = rule.is_finite_power(power)
        return np.where(usable, gradient, 0.0), usable

    def draw_first(factor: float) -> tuple[Array, Booleans]:
        gradient, usable = draw(first, factor)
        rejected[~usable[:, 0]] += 1
        return gradient, usable

    excess_loss, noise_floor = np.empty((steps + 1, runs)), np.empty(steps + 1)
    rates, positions = np.empty((steps, *shape)), np.empty((steps + 1, *shape))

    def record(step: int) -> None:
        excess_loss[step], noise_floor[step] = landscape.excess_loss(theta), landscape.noise_floor()
        positions[step] = theta

    stepper = method.begin(problem, runs, draw_first)
    for step in range(steps):
        if problem.change_every and step and step % problem.change_every == 0:
            landscape.change(problem, step // problem.change_every, changes)
        record(step)
        gradient, usable = draw(samples, 1.0)
        rate = stepper.rates(landscape, theta, gradient)
        moved = theta - rate * gradient
        accepted = usable & np.all(np.isfinite(moved), axis=1, keepdims=True)
        stepper.accept(accepted)
        rejected += ~accepted[:, 0]
        theta = np.where(accepted, moved, theta)
        rates[step] = np.where(accepted, rate, 0.0)
    record(steps)
    return Trace(method.name, excess_loss, noise_floor, rates, positions, rejected)
