"""Stochastic meta-descent (Schraudolph, 1999) with one global rate, as in the paper's appendix."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pesky.errors import check_number
from pesky.online.blocks import conclude, gather, implements, prepare
from pesky.online.changes import directional_pass, product_at
from pesky.online.methods.base import Beginning, Method
from pesky.online.passes import LARGEST, Floats

__all__ = ["SMD"]


class SMDState(NamedTuple):
    """`trace` is the paper's auxiliary vector v: how the parameters depend on the rate's past."""

    settings: Floats  # mu, and 1 - 1/tau
    rate: Floats
    trace: Floats
    agreement: Floats  # gradient times trace, summed over the blocks so far
    used_rate: Floats  # of the last step that had one


@implements(prepare, SMDState)
def _prepare(state: Any, shape: Any, theta: Any, work: Any) -> None:
    directional_pass(shape, theta, work, state.trace)
    state.agreement[0] = np.float32(0)
    # A trace beyond float32's range leaves no rate, and the step without one ends the run.
    if np.isfinite(state.rate[0]):
        state.used_rate[0] = state.rate[0]


@implements(gather, SMDState)
def _collect(state: Any, block: Any) -> None:
    keep, rate, l2 = state.settings[1], state.rate[0], block.l2
    columns = block.column.size
    column, column_change = block.column, block.column_change
    agreement = np.float32(0)
    for j in range(block.row.size):
        theta = block.theta[j * columns : (j + 1) * columns]
        trace = state.trace[block.start + j * columns : block.start + (j + 1) * columns]
        pull, change = block.row[j], block.row_change[j]
        for i in range(columns):
            gradient = pull * column[i] + l2 * theta[i]
            product = product_at(pull, column[i], change, column_change[i], l2, trace[i])
            agreement += gradient * trace[i]
            theta[i] -= rate * gradient
            trace[i] = keep * trace[i] - rate * (gradient + keep * product)
    state.agreement[0] += agreement


@implements(conclude, SMDState)
def _conclude(state: Any) -> None:
    # The rate is the only number that can leave the range of float32 by itself; it stays in it.
    exponent = -state.settings[0] * state.agreement[0]
    rate = np.float64(state.rate[0]) * np.exp(min(max(np.float64(exponent), -80.0), 80.0))
    state.rate[0] = min(max(rate, 1e-15), 1e15)


@dataclass(frozen=True)
class SMD(Method):
    """One rate, multiplied at each step by exp(-mu gradient . trace).

    The trace, the paper's v, follows how the parameters depend on the rate, with an exact
    Hessian-vector product; it forgets with time constant tau.

    >>> from pesky.online import SMD, Network, fit
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> network = Network([1, 2])
    >>> _ = fit(network, SMD(0.3, mu=0.001, tau=100), X, y, epochs=200)
    >>> network.predict([[0.2], [2.9]]).tolist()
    [0, 1]
    """

    eta0: float
    mu: float
    tau: float

    name = "smd"

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        self._keep(
            eta0=check_number("eta0", self.eta0, above=0, most=LARGEST),
            mu=check_number("mu", self.mu, least=0, most=LARGEST),
            tau=check_number("tau", self.tau, least=1),
        )

    def begin(self, beginning: Beginning) -> SMDState:
        """Start with a trace of zero: the past had no influence yet."""
        rate = np.array([self.eta0], np.float32)
        return SMDState(
            np.array([self.mu, 1 - 1 / self.tau], np.float32),
            rate,
            np.zeros(beginning.parameters, np.float32),
            np.zeros(1, np.float32),
            rate.copy(),
        )

    def rates(self, state: SMDState) -> Floats:
        """One rate for all."""
        return state.used_rate
