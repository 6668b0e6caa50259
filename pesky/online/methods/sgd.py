"""Stochastic gradient descent with the schedule eta0 / (1 + gamma t)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pesky.errors import check_number
from pesky.online.blocks import apply, conclude, implements
from pesky.online.methods.base import Beginning, Method, descend
from pesky.online.passes import LARGEST, Floats

__all__ = ["SGD"]


class SGDState(NamedTuple):
    """`schedule` holds eta0, gamma, and the number of steps taken, t; `rate` the present rate."""

    schedule: NDArray[np.float64]
    rate: Floats


@implements(conclude, SGDState)
def _conclude(state: Any) -> None:
    eta0, gamma, time = state.schedule[0], state.schedule[1], state.schedule[2]
    state.rate[0] = eta0 / (1.0 + gamma * time)
    state.schedule[2] = time + 1.0


@implements(apply, SGDState)
def _apply(state: Any, block: Any) -> None:
    descend(block, state.rate[0])


@dataclass(frozen=True)
class SGD(Method):
    """A rate eta0 / (1 + gamma t), t counting samples from 0.

    >>> from pesky.online import Network, SGD, fit
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> network = Network([1, 2])
    >>> _ = fit(network, SGD(0.5), X, y, epochs=200)
    >>> network.predict([[0.2], [2.9]]).tolist()
    [0, 1]
    """

    eta0: float
    gamma: float = 0.0

    name = "sgd"

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        self._keep(
            eta0=check_number("eta0", self.eta0, above=0, most=LARGEST),
            gamma=check_number("gamma", self.gamma, least=0),
        )

    def begin(self, beginning: Beginning) -> SGDState:
        """Nothing is known before the first step."""
        return SGDState(np.array([self.eta0, self.gamma, 0.0]), np.array([self.eta0], np.float32))

    def rates(self, state: SGDState) -> Floats:
        """One rate for all."""
        return state.rate
