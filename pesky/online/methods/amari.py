"""Amari's natural gradient with a diagonal Fisher matrix, in the paper's simplest form."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from pesky import rule
from pesky.compiling.compiled import compiled
from pesky.errors import InputError, check_number
from pesky.online.blocks import gather, implements, observe
from pesky.online.methods.base import Beginning, Method
from pesky.online.passes import LARGEST, Floats

__all__ = ["Amari", "VStart", "check_start", "observe_square"]

VStart = Literal["one", "samples"]


def check_start(start: str) -> None:
    """Refuse a start of v that is not known."""
    if start not in get_args(VStart):
        raise InputError(f"start must be one of {', '.join(get_args(VStart))}; got {start!r}")


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


@implements(gather, AmariState)
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

    The paper does not say where v starts. At "one" its numbers come out best (M1: 2.87 % train and
    4.05 % test error, the paper has 2.91 and 3.95); "samples" is the mean of the initial samples
    (2.63 and 3.82).

    >>> from pesky.online import Amari, Network, fit
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> network = Network([1, 2])
    >>> _ = fit(network, Amari(0.01, tau=100), X, y, epochs=200)
    >>> network.predict([[0.2], [2.9]]).tolist()
    [0, 1]
    """

    eta0: float
    tau: float
    start: VStart = "one"

    name = "amari"

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        self._keep(
            eta0=check_number("eta0", self.eta0, above=0, most=LARGEST),
            tau=check_number("tau", self.tau, least=1, most=LARGEST),
        )
        check_start(self.start)

    def begin(self, beginning: Beginning) -> AmariState:
        """Leave v to `end_look`."""
        settings = np.array([self.eta0, self.tau], np.float32)
        return AmariState(settings, np.zeros(beginning.parameters, np.float32))

    def end_look(self, state: AmariState, beginning: Beginning, samples: int) -> None:
        """Let v start as asked."""
        if self.start == "one":
            state.mean_square[:] = 1

    def rates(self, state: AmariState) -> Floats:
        """One a parameter."""
        return np.asarray(rule.learning_rate(state.settings[0], state.mean_square))
