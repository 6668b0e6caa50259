"""Almeida's rates from successive gradients, in three readings."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from pesky import rule
from pesky.compiling.compiled import compiled
from pesky.errors import InputError, check_number
from pesky.online.blocks import gather, implements, observe
from pesky.online.methods.amari import VStart, check_start, observe_square
from pesky.online.methods.base import Beginning, Method
from pesky.online.passes import LARGEST, Floats

__all__ = ["Almeida"]

PRINTED, PRODUCT, MULTIPLICATIVE = 0, 1, 2
_READINGS = {"printed": PRINTED, "product": PRODUCT, "multiplicative": MULTIPLICATIVE}
_START_RATE = 1e-3  # of the multiplicative reading, whose eta0 is the strength of the adaptation


_LARGEST_RATE = np.float32(1e15)  # rates multiply; beyond this a run is lost, but stays finite


class AlmeidaState(NamedTuple):
    """`settings` are eta0, tau and the reading's number; the rest has one entry a parameter."""

    settings: Floats
    mean_square: Floats  # v
    last_gradient: Floats
    rate: Floats


@implements(observe, AlmeidaState)
def _observe(state: Any, block: Any, count: int) -> None:
    observe_square(block, state.mean_square, count)


@compiled
def _row(
    theta: Any,
    mean: Any,
    last: Any,
    rate: Any,
    column: Any,
    pull: Any,
    l2: Any,
    eta0: Any,
    memory: Any,
    reading: int,
) -> None:
    for i in range(theta.size):
        gradient = pull * column[i] + l2 * theta[i]
        mean[i] = rule.average(mean[i], gradient * gradient, memory)
        agreement = rule.learning_rate(eta0, mean[i]) * last[i]
        agreement *= theta[i] if reading == PRINTED else gradient
        agreement = agreement if abs(agreement) < _LARGEST_RATE else _LARGEST_RATE
        wanted = rate[i] + rate[i] * agreement if reading == MULTIPLICATIVE else agreement
        rate[i] = min((wanted > 0) * wanted, _LARGEST_RATE)
        last[i] = gradient
        theta[i] -= rate[i] * gradient


@implements(gather, AlmeidaState)
def _collect(state: Any, block: Any) -> None:
    columns = block.column.size
    eta0, memory, reading = state.settings[0], state.settings[1], int(state.settings[2])
    for j in range(block.row.size):
        here = slice(j * columns, (j + 1) * columns)
        there = slice(block.start + j * columns, block.start + (j + 1) * columns)
        _row(
            block.theta[here],
            state.mean_square[there],
            state.last_gradient[there],
            state.rate[there],
            block.column,
            block.row[j],
            block.l2,
            eta0,
            memory,
            reading,
        )


@dataclass(frozen=True)
class Almeida(Method):
    """A rate for each parameter from its last gradient.

    `reading` says which of three published forms is meant, g(t) being a gradient, v a running average
    of its square. "printed" is max(0, eta0 theta(t) g(t-1) / v), as the paper has it: no descent rule,
    but the one that reproduces the paper's numbers (M0: 12.1 % train and 11.4 % test error, M1: 8.4 and
    8.1; the paper has 11.80 and 11.13, 8.49 and 8.39). "product" has g(t) in the place of
    theta(t): rates are large while successive gradients agree. "multiplicative" is
    eta(t-1) (1 + eta0 g(t) g(t-1) / v), from 0.001 on. `start` is as for `Amari`.

    >>> from pesky.online import Almeida, Network, fit
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> network = Network([1, 2])
    >>> _ = fit(network, Almeida(0.05, tau=100, reading="product"), X, y, epochs=200)
    >>> network.predict([[0.2], [2.9]]).tolist()
    [0, 1]
    """

    eta0: float
    tau: float
    reading: Literal["printed", "product", "multiplicative"] = "printed"
    start: VStart = "one"

    name = "almeida"

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        self._keep(
            eta0=check_number("eta0", self.eta0, above=0, most=LARGEST),
            tau=check_number("tau", self.tau, least=1, most=LARGEST),
        )
        check_start(self.start)
        if self.reading not in tuple(_READINGS):
            raise InputError(f"reading must be one of {', '.join(_READINGS)}; got {self.reading!r}")

    def begin(self, beginning: Beginning) -> AlmeidaState:
        """Leave v to `end_look`; there is no last gradient yet, so the first step is zero."""
        settings = np.array([self.eta0, self.tau, _READINGS[self.reading]], np.float32)
        mean_square, last, rate = (np.zeros(beginning.parameters, np.float32) for _ in range(3))
        if self.reading == "multiplicative":
            rate += np.float32(_START_RATE)
        return AlmeidaState(settings, mean_square, last, rate)

    def end_look(self, state: AlmeidaState, beginning: Beginning, samples: int) -> None:
        """Let v start as asked."""
        if self.start == "one":
            state.mean_square[:] = 1

    def rates(self, state: AlmeidaState) -> Floats:
        """One a parameter."""
        return state.rate
