"""Where the parameters are: iterate, previous iterate or average; and which of them is visible."""

from typing import Any

import torch
from torch import Tensor

from pesky import collective as shared
from pesky.torch.collective import Collective
from pesky.torch.parts import statistics_type

__all__ = ["Places"]

_NAMES = ("iterate", "previous", "average")


class Places:
    """The places of all parameters that have moved, kept in the optimizer's state."""

    def __init__(self, state: Any, collective: Collective) -> None:
        """Work on this state."""
        self._state = state
        self._collective = collective
        self._versions: dict[Tensor, int] = {}

    def _moved(self) -> list[Tensor]:
        return [one for one, state in self._state.items() if "iterate" in state]

    def _at(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        return [self._state[one][name] for one in parameters]

    @torch.no_grad()
    def go(self, name: str) -> None:
        """Set the parameters to one of the places."""
        if moved := self._moved():
            torch._foreach_copy_(moved, self._at(name, moved))

    def enter(self, visible_is_iterate: bool = False) -> None:
        """Make the parameters the iterate, unless they were changed from outside: then they are it."""
        name = "average" if self._collective.shows_average else "iterate"
        if self._is_changed(name) or (visible_is_iterate and name == "average"):
            self._start_over()
        elif name == "average":
            self.go("iterate")

    def show(self) -> None:
        """Make the better place visible: the average, if it was the better one lately."""
        self.stay("average" if self._collective.choose_visible() else "iterate")

    def stay(self, name: str = "iterate") -> None:
        """Make a place visible."""
        self.go(name)
        self._versions = {one: one._version for one in self._moved()}

    @torch.no_grad()
    def attempt(self, parameters: list[Tensor], directions: list[Tensor], scale: float) -> None:
        """Set parameters to where a step would lead."""
        iterates = self._at("iterate", parameters)
        if all(one.dtype == iterate.dtype for one, iterate in zip(parameters, iterates, strict=True)):
            torch._foreach_copy_(parameters, iterates)
            torch._foreach_add_(parameters, directions, alpha=-scale)
        else:  # parameters in half precision, whose places are kept in float32
            torch._foreach_copy_(parameters, torch._foreach_add(iterates, directions, alpha=-scale))

    @torch.no_grad()
    def begin(self, parameters: list[Tensor]) -> None:
        """Give those that move for the first time their places."""
        for one in parameters:
            if "iterate" not in self._state[one]:
                kind = statistics_type(one)
                self._state[one].update({name: one.detach().to(kind, copy=True) for name in _NAMES})

    @torch.no_grad()
    def move(self, parameters: list[Tensor], steps: list[Tensor], scales: list[float]) -> None:
        """Move the iterate by -scale times step, and the average towards it."""
        moved = self._moved()
        torch._foreach_copy_(self._at("previous", moved), self._at("iterate", moved))
        iterates = self._at("iterate", parameters)
        if len(set(scales)) == 1:
            torch._foreach_add_(iterates, steps, alpha=-scales[0])
        else:
            for iterate, step, scale in zip(iterates, steps, scales, strict=True):
                iterate.add_(step, alpha=-scale)
        weight = self._collective.count()
        torch._foreach_lerp_(self._at("average", moved), self._at("iterate", moved), weight)

    @torch.no_grad()
    def undo(self) -> None:
        """Go back to the previous iterate."""
        moved = self._moved()
        if moved and shared.restore(self._collective.numbers):
            torch._foreach_copy_(self._at("iterate", moved), self._at("previous", moved))

    def _is_changed(self, name: str) -> bool:
        """Whether parameters are not what was made visible; without a word if on another device."""
        return any(
            (one.is_cpu or one._version != self._versions.get(one))
            and not torch.equal(one, self._state[one][name].to(one.dtype))
            for one in self._moved()
        )

    @torch.no_grad()
    def _start_over(self) -> None:
        shared.start_over(self._collective.numbers)
        for one in self._moved():
            for name in _NAMES:
                self._state[one][name].copy_(one)
