"""Stochastic meta-descent (Schraudolph, 1999) with one global rate, as in the paper's appendix."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pesky.compiling.compiled import compiled
from pesky.errors import check_number
from pesky.online.blocks import conclude, gather, implements, prepare
from pesky.online.methods.base import Beginning, Method
from pesky.online.passes import CROSS_ENTROPY, LARGEST, TANH, Floats, slope

__all__ = ["SMD", "directional_pass"]


class SMDState(NamedTuple):
    """`trace` is the paper's auxiliary vector v: how the parameters depend on the rate's past."""

    settings: Floats  # mu, and 1 - 1/tau
    rate: Floats
    trace: Floats
    agreement: Floats  # gradient times trace, summed over the blocks so far
    used_rate: Floats  # of the last step that had one


@compiled
def directional_pass(shape: Any, theta: Any, work: Any, direction: Any) -> None:
    """Derivatives of all units' outputs and deltas when the parameters move along `direction`.

    Pearlmutter's exact product with the Hessian, in the form that a block's outer product needs:
    fills `output_change` and `delta_change`.
    """
    layers = shape.sizes.size - 1
    work.output_change[: shape.sizes[0]] = np.float32(0)
    for k in range(layers):
        columns, rows = shape.sizes[k], shape.sizes[k + 1]
        below = slice(shape.unit_at[k], shape.unit_at[k] + columns)
        outputs, changes = work.output[below], work.output_change[below]
        for j in range(rows):
            here = slice(shape.weight_at[k] + j * columns, shape.weight_at[k] + (j + 1) * columns)
            weights, along = theta[here], direction[here]
            total = direction[shape.bias_at[k] + j]
            for i in range(columns):
                total += along[i] * outputs[i] + weights[i] * changes[i]
            unit = shape.unit_at[k + 1] + j
            # Until the way back, delta_change keeps the change of what comes into the unit.
            work.delta_change[unit] = total
            if k < layers - 1:
                total *= slope(shape.activation, work.output[unit])
            work.output_change[unit] = total
    _change_of_head(shape, work)
    for k in range(layers - 1, 0, -1):
        columns, rows = shape.sizes[k], shape.sizes[k + 1]
        below = slice(shape.unit_at[k], shape.unit_at[k] + columns)
        outputs, back = work.output[below], work.back[below]
        back_change, delta_change = work.back_change[below], work.delta_change[below]
        back_change[:] = np.float32(0)
        for j in range(rows):
            here = slice(shape.weight_at[k] + j * columns, shape.weight_at[k] + (j + 1) * columns)
            weights, along = theta[here], direction[here]
            pull = work.delta[shape.unit_at[k + 1] + j]
            change = work.delta_change[shape.unit_at[k + 1] + j]
            for i in range(columns):
                back_change[i] += along[i] * pull + weights[i] * change
        for i in range(columns):
            steep = slope(shape.activation, outputs[i])
            bent = np.float32(0)
            if shape.activation == TANH:
                bent = -(outputs[i] + outputs[i]) * steep
            delta_change[i] = steep * back_change[i] + bent * delta_change[i] * back[i]


@compiled
def _change_of_head(shape: Any, work: Any) -> None:
    start = shape.unit_at[-1]
    size = shape.sizes[-1]
    change = work.output_change[start : start + size]
    delta_change = work.delta_change[start : start + size]
    if shape.loss != CROSS_ENTROPY:
        delta_change[:] = change
        return
    outputs = work.output[start : start + size]
    largest = outputs[0]
    for j in range(size):
        largest = max(largest, outputs[j])
    total, weighted = np.float32(0), np.float32(0)
    for j in range(size):
        share = np.exp(outputs[j] - largest)
        total += share
        weighted += share * change[j]
    for j in range(size):
        probability = np.exp(outputs[j] - largest) / total
        delta_change[j] = probability * (change[j] - weighted / total)


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
            product = change * column[i] + pull * column_change[i] + l2 * trace[i]
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
