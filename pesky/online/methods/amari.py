"""Amari's natural gradient with a diagonal Fisher matrix, in the paper's simplest form."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pesky import rule
from pesky.errors import check_number
from pesky.online.blocks import collect, implements, observe
from pesky.online.compiled import compiled
from pesky.online.methods.base import Beginning, Method
from pesky.online.passes import Floats

__all__ = ["Amari", "observe_square"]


class AmariState(NamedTuple):
    """`mean_square` is v, `settings` eta0 and tau."""

    settings: Floats
    mean_square: Floats


@compiled
def observe_square(block: Any, mean_square: Any, count: int) -> None:
    """Take an initial sample's squared gradient into v, an arithmetic mean so far."""
    columns = block.column.size
    memory = np.float32(count)
    for j in range(block.row.size):
        theta = block.theta[j * columns : (j + 1) * columns]
        mean = mean_square[block.start + j * columns : block.start + (j + 1) * columns]
        pull = block.row[j]
        for i in range(columns):
            gradient = pull * block.column[i] + block.l2 * theta[i]
            mean[i] = rule.average(mean[i], gradient * gradient, memory)


@implements(observe, AmariState)
def _observe(state: Any, block: Any, count: int) -> None:
    observe_square(block, state.mean_square, count)


@compiled
def _row(theta: Any, mean: Any, column: Any, pull: Any, l2: Any, eta0: Any, memory: Any) -> None:
    for i in range(theta.size):
        gradient = pull * column[i] + l2 * theta[i]
        mean[i] = rule.average(mean[i], gradient * gradient, memory)
        theta[i] -= rule.learning_rate(eta0, mean[i]) * gradient


@implements(collect, AmariState)
def _collect(state: Any, block: Any) -> None:
    columns = block.column.size
    eta0, memory = state.settings[0], state.settings[1]
    for j in range(block.row.size):
        here = slice(j * columns, (j + 1) * columns)
        mean = state.mean_square[block.start + j * columns : block.start + (j + 1) * columns]
        _row(block.theta[here], mean, block.column, block.row[j], block.l2, eta0, memory)


@dataclass(frozen=True)
class Amari(Method):
    """A rate eta0 / v for each parameter, v a running average of its squared gradient.

    >>> from pesky.online import Amari, Network, fit
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> network = Network([1, 2])
    >>> _ = fit(network, Amari(0.01, tau=100), X, y, epochs=200)
    >>> network.predict([[0.2], [2.9]]).tolist()
    [0, 1]
    """

    eta0: float
    tau: float

    name = "amari"

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_number("eta0", self.eta0, above=0)
        check_number("tau", self.tau, least=1)

    def begin(self, beginning: Beginning) -> AmariState:
        """Leave v to the initial samples."""
        settings = np.array([self.eta0, self.tau], np.float32)
        return AmariState(settings, np.zeros(beginning.parameters, np.float32))

    @property
    def looks_first(self) -> bool:
        """The first v is the initial samples' mean."""
        return True

    def rates(self, state: AmariState) -> Floats:
        """One a parameter."""
        return np.asarray(rule.learning_rate(state.settings[0], state.mean_square))
