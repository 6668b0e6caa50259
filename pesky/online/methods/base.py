"""What every method has: settings, a state of arrays, and rates that can be seen."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from pesky.compiling.compiled import compiled
from pesky.online.passes import Floats

__all__ = ["Beginning", "Method", "State", "descend"]

State = Any  # a NamedTuple of arrays, and of None where an option is off; each method has its own


class Beginning(NamedTuple):
    """What a method may know of the network before the first sample."""

    parameters: int
    block_sizes: tuple[int, ...]  # each layer's weights, each layer's biases


class Method(ABC):
    """A way to choose the learning rate. Subclasses are frozen dataclasses of their settings."""

    name: ClassVar[str]

    def _keep(self, **settings: Any) -> None:
        """Store checked settings, which are plain numbers whatever kind was given."""
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    @property
    def bbprop_every(self) -> int:
        """In one of how many updates bbprop runs; 0: never."""
        return 0

    @abstractmethod
    def begin(self, beginning: Beginning) -> State:
        """Return the state before any sample, as a NamedTuple of arrays that are changed in place."""

    def initial_factor(self, beginning: Beginning) -> float:
        """Return by how much the initial averages will be overestimated."""
        return 1.0

    def end_look(self, state: State, beginning: Beginning, samples: int) -> None:  # noqa: B027
        """Turn the plain averages of the initial samples into the starting state; so many counted."""

    def enter(self, state: State, theta: Floats) -> None:  # noqa: B027
        """Turn the parameters that users see into those that are trained."""

    def leave(self, state: State, theta: Floats) -> None:  # noqa: B027
        """Turn the parameters that are trained into those that users see."""

    @abstractmethod
    def rates(self, state: State) -> Floats:
        """Return the rates of the last step: one, one a block or one a parameter."""

    def memory(self, state: State) -> Floats | None:
        """Return tau where the method adapts one."""
        return None


@compiled
def descend(block: Any, rate: Any) -> None:
    """Move a block against its gradient with one rate for all of it."""
    columns = block.column.size
    for j in range(block.row.size):
        theta = block.theta[j * columns : (j + 1) * columns]
        pull = block.row[j]
        for i in range(columns):
            theta[i] -= rate * (pull * block.column[i] + block.l2 * theta[i])
