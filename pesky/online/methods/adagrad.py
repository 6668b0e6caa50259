"""AdaGrad (Duchi, Hazan and Singer, 2011), as the paper gives it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pesky import rule
from pesky.compiling.compiled import compiled
from pesky.errors import check_number
from pesky.online.blocks import gather, implements
from pesky.online.methods.base import Beginning, Method
from pesky.online.passes import LARGEST, Floats

__all__ = ["AdaGrad"]


class AdaGradState(NamedTuple):
    """`total` is the sum of all squared gradients, this step's included."""

    eta0: Floats
    total: Floats


@compiled
def _row(theta: Any, total: Any, column: Any, pull: Any, l2: Any, eta0: Any) -> None:
    for i in range(theta.size):
        gradient = pull * column[i] + l2 * theta[i]
        total[i] += gradient * gradient
        theta[i] -= rule.learning_rate(eta0, np.sqrt(total[i])) * gradient


@implements(gather, AdaGradState)
def _collect(state: Any, block: Any) -> None:
    columns = block.column.size
    for j in range(block.row.size):
        here = slice(j * columns, (j + 1) * columns)
        total = state.total[block.start + j * columns : block.start + (j + 1) * columns]
        _row(block.theta[here], total, block.column, block.row[j], block.l2, state.eta0[0])


@dataclass(frozen=True)
class AdaGrad(Method):
    """A rate eta0 / sqrt(sum of squared gradients) for each parameter.

    >>> from pesky.online import AdaGrad, Network, fit
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> network = Network([1, 2])
    >>> _ = fit(network, AdaGrad(0.5), X, y, epochs=200)
    >>> network.predict([[0.2], [2.9]]).tolist()
    [0, 1]
    """

    eta0: float

    name = "adagrad"

    def __post_init__(self) -> None:
        """Refuse rates that are not positive."""
        self._keep(eta0=check_number("eta0", self.eta0, above=0, most=LARGEST))

    def begin(self, beginning: Beginning) -> AdaGradState:
        """Start from an empty sum: the first step moves every parameter by eta0."""
        return AdaGradState(
            np.array([self.eta0], np.float32), np.zeros(beginning.parameters, np.float32)
        )

    def rates(self, state: AdaGradState) -> Floats:
        """One a parameter."""
        return np.asarray(rule.learning_rate(state.eta0, np.sqrt(state.total)))
