"""Where the parameters are: iterate, previous iterate or average; and which of them is visible."""

from typing import Any

import torch
from torch import Tensor

from pesky import length
from pesky.torch.passes.bundle import Part, statistics_type
from pesky.torch.passes.fused import Move, are_same, move
from pesky.torch.step.collective import Collective
from pesky.torch.step.parts import fit

__all__ = ["Places"]

_NAMES = ("iterate", "previous", "average")


class Places:
    """The places of all parameters that have moved, kept in the optimizer's state."""

    def __init__(self, state: Any, collective: Collective) -> None:
        """Work on this state."""
        self._state = state
        self._collective = collective
        self._versions: dict[Tensor, int] = {}
        self._shown: dict[Tensor, str] = {}  # where parameters are already, after a move

    def _moved(self) -> list[Tensor]:
        return [one for one, state in self._state.items() if "iterate" in state]

    def _at(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        return [self._state[one][name] for one in parameters]

    @torch.no_grad()
    def go(self, name: str) -> None:
        """Set the parameters to one of the places."""
        elsewhere = [one for one in self._moved() if self._shown.get(one) != name]
        self._shown.clear()
        if elsewhere:
            torch._foreach_copy_(elsewhere, self._at(name, elsewhere))

    def enter(self, visible_is_iterate: bool = False) -> None:
        """Make the parameters the iterate, unless they were changed from outside: then they are it."""
        self._let_go()
        name = self._collective.visible
        if self._is_changed(name) or (visible_is_iterate and name == "average"):
            self.start_over()
        elif name == "average":
            self.go("iterate")

    def _let_go(self) -> None:
        """Forget the places of frozen parameters, which stay what is visible of them."""
        for one in self._moved():
            fit(one, self._state[one])
            if not one.requires_grad:
                self.forget(one)

    def forget(self, parameter: Tensor) -> None:
        """Forget the places of a parameter, which stays where it is."""
        for name in _NAMES:
            self._state[parameter].pop(name, None)

    def show(self) -> None:
        """Make the better place visible: the average, if it was the better one lately."""
        self._collective.choose_visible()
        self.stay(self._collective.visible)

    def stay(self, name: str = "iterate") -> None:
        """Make a place visible."""
        self.go(name)
        self._versions = {one: one._version for one in self._moved()}

    def take_spare(self, part: Part) -> Tensor:
        """Give up the previous iterate, to which there is then no way back: a direction is put there.

        A parameter that is to move for the first time gets its places.
        """
        self._collective.undoable = 0.0
        if "iterate" not in part.state:
            kind, theta = statistics_type(part.theta), part.theta.detach()
            part.state.update({name: theta.to(kind, copy=True) for name in _NAMES})
        found: Tensor = part.state["previous"]
        return found

    @torch.no_grad()
    def attempt(self, parameters: list[Tensor], scale: float) -> None:
        """Set parameters to where a step of this scale along their spare places would lead.

        Those that had no gradient are then at their iterates.
        """
        moving = set(parameters)
        others = [one for one in self._moved() if one not in moving]
        if others:
            torch._foreach_copy_(others, self._at("iterate", others))
        for one in parameters:
            state = self._state[one]
            torch.add(state["iterate"], state["previous"], alpha=-scale, out=one)

    @torch.no_grad()
    def move(self, parameters: list[Tensor], scales: list[float]) -> bool:
        """Move iterates by -scale times what is in their spare places, and averages towards them.

        Entries that would not be finite stay; return whether there are any. Only what has been
        computed becomes a place, so that an interrupt leaves each parameter with a sound one.
        """
        held = False
        weight, shows_average = self._collective.count(), self._collective.prefers_average
        self._collective.undoable = 0.0  # until all have moved, spare places are no previous ones
        at_once: dict[torch.dtype, list[Move]] = {}
        moving, others = set(parameters), set(self._moved())
        for one, scale in zip(parameters, scales, strict=True):
            state = self._state[one]
            each = Move(one, state["iterate"], state["previous"], state["average"], scale)
            if each.is_fusible:
                at_once.setdefault(one.dtype, []).append(each)
                others.remove(one)
            else:
                held |= _step(each)
                self._swap(one)
        for alike in at_once.values():
            held |= move(alike, weight, shows_average)
            for each in alike:
                self._swap(each.theta)
            self._shown |= {each.theta: "average" if shows_average else "iterate" for each in alike}
        for one in others:
            state = self._state[one]
            state["average"].lerp_(state["iterate"], weight)
            if one not in moving:  # it had no gradient
                state["previous"].copy_(state["iterate"])
        self._collective.undoable = 1.0
        return held

    def _swap(self, parameter: Tensor) -> None:
        """Let the spare place become the iterate, and that the previous one."""
        state = self._state[parameter]
        state["iterate"], state["previous"] = state["previous"], state["iterate"]

    @torch.no_grad()
    def undo(self, name: str) -> None:
        """Go back to the previous iterate, or to the average."""
        moved = self._moved()
        if moved and length.restore(self._collective):
            torch._foreach_copy_(self._at("iterate", moved), self._at(name, moved))

    def _is_changed(self, name: str) -> bool:
        """Whether parameters are not what was made visible; without a word if on another device."""
        return not are_same(
            [
                (one.detach(), self._state[one][name])
                for one in self._moved()
                if one.is_cpu or one._version != self._versions.get(one)
            ]
        )

    @torch.no_grad()
    def start_over(self) -> None:
        """Let the parameters be all of their places."""
        length.start_over(self._collective)
        for one in self._moved():
            for name in _NAMES:
                self._state[one][name].copy_(one)


def _step(each: Move) -> bool:
    """Make a spare place the next iterate, within what the parameter's type can hold."""
    torch.add(each.iterate, each.spare, alpha=-each.scale, out=each.spare)
    moved = each.spare.to(each.theta.dtype)
    if bool(moved.isfinite().all()):
        return False
    each.spare.copy_(torch.where(moved.isfinite(), each.spare, each.iterate))
    return True
