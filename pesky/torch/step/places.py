"""Where the parameters are: iterate or average; and which of them is visible."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pesky import length
from pesky.torch.passes.bundle import Part, statistics_type
from pesky.torch.passes.fused import Move, are_same, move
from pesky.torch.shards import local_of
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import Direction
from pesky.torch.step.parts import fit

__all__ = ["Places"]

_NAMES = ("iterate", "average")


class Places:
    """The places of all parameters that have moved, kept in the optimizer's state."""

    def __init__(self, state: Any, collective: Collective, agree: Callable[[bool], bool]) -> None:
        """Work on this state; `agree` tells whether something is so in any process."""
        self._state = state
        self._agree = agree
        self._collective = collective
        self.follows_mode = False  # whether passes of a watched model choose what is visible
        self._here: str | None = None  # where parameters were put at last, if nothing happened since
        self._versions: dict[Tensor, int] = {}
        self._shown: dict[Tensor, str] = {}  # where parameters are already, after a move

    def _moved(self) -> list[Tensor]:
        return [one for one, state in self._state.items() if "iterate" in state]

    def _at(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        return [self._state[one][name] for one in parameters]

    def iterates(self) -> dict[Tensor, Tensor]:
        """Return the iterates of parameters that have moved."""
        return {one: self._state[one]["iterate"] for one in self._moved()}

    @torch.no_grad()
    def go(self, name: str) -> None:
        """Set the parameters to one of the places."""
        elsewhere = [one for one in self._moved() if self._shown.get(local_of(one)) != name]
        self._shown.clear()
        if elsewhere:
            torch._foreach_copy_(_here(elsewhere), self._at(name, elsewhere))

    def enter(self, visible_is_iterate: bool = False) -> None:
        """Make the parameters the iterate, unless they were changed from outside: then they are it."""
        self._let_go()
        name = self._found(self._moved(), self._agree)
        if name is None or (visible_is_iterate and name == "average"):
            self.start_over()
        elif name == "average":
            self.go("iterate")

    def _found(self, parameters: list[Tensor], agree: Callable[[bool], bool] = bool) -> str | None:
        """Return the place that parameters are at; None if they were changed from outside."""
        first = self._here or self._collective.visible
        names = sorted(_NAMES, key=lambda name: name != first)
        return next((name for name in names if not agree(self._is_changed(name, parameters))), None)

    def turn(self, name: str) -> None:
        """Let a pass of a watched model see a place, unless parameters were changed from outside.

        What is frozen stays where it is.
        """
        moving = [one for one in self._moved() if one.requires_grad]
        for one in moving:
            fit(one, self._state[one])
        moving = [one for one in moving if "iterate" in self._state[one]]
        is_known = all(one._version == self._versions.get(one) for one in moving)
        here = self._here if is_known and self._here else self._found(moving)
        if here in (None, name):
            return
        with torch.no_grad():
            torch._foreach_copy_(moving, self._at(name, moving))
        torch.clear_autocast_cache()
        self._note(name, moving)

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
        self._note(name, self._moved())

    def _note(self, name: str, parameters: list[Tensor]) -> None:
        self._here = name
        self._versions = {one: local_of(one)._version for one in parameters}

    def begin(self, part: Part) -> Tensor:
        """Return memory for the direction of a step, which the end of the step frees.

        A parameter that is to move for the first time gets its places.
        """
        if "iterate" not in part.state:
            kind, theta = statistics_type(part.theta), part.theta.detach()
            part.state.update({name: theta.to(kind, copy=True) for name in _NAMES})
        return torch.empty_like(part.state["iterate"])

    @torch.no_grad()
    def attempt(self, direction: Direction, scale: float) -> None:
        """Set parameters to where a step of this scale would lead.

        Those that had no gradient are then at their iterates.
        """
        moving = {part.theta for part in direction.parts}
        others = [one for one in self._moved() if local_of(one) not in moving]
        if others:
            torch._foreach_copy_(_here(others), self._at("iterate", others))
        for part, value in zip(direction.parts, direction.values, strict=True):
            torch.add(part.state["iterate"], value, alpha=-scale, out=part.theta)

    @torch.no_grad()
    def move(self, direction: Direction, scales: list[float]) -> bool:
        """Take iterates into averages, and move on from them by -scale times their direction.

        An iterate is not in the average before the next batch has been content with it, so that the
        average is where to go back to. Entries that would not be finite stay; return whether there are
        any. The direction is used up.
        """
        held = False
        weight = self._collective.count()
        shows_average = self._collective.prefers_average and not self.follows_mode
        at_once: dict[torch.dtype, list[Move]] = {}
        others = {local_of(one): self._state[one] for one in self._moved()}
        for part, value, scale in zip(direction.parts, direction.values, scales, strict=True):
            one, state = part.theta, part.state
            each = Move(one, state["iterate"], value, state["average"], scale)
            if each.is_fusible:
                at_once.setdefault(one.dtype, []).append(each)
            else:
                each.average.lerp_(each.iterate, weight)
                held |= _step(each)
            del others[one]
        for alike in at_once.values():
            held |= move(alike, weight, shows_average)
            self._shown |= {each.theta: "average" if shows_average else "iterate" for each in alike}
        for state in others.values():  # they had no gradient
            state["average"].lerp_(state["iterate"], weight)
        return held

    @torch.no_grad()
    def undo(self) -> None:
        """Go back to the average, if there is a step that it has not seen."""
        moved = self._moved()
        if moved and length.restore(self._collective):
            torch._foreach_copy_(self._at("iterate", moved), self._at("average", moved))

    def _is_changed(self, name: str, parameters: list[Tensor]) -> bool:
        """Whether parameters are not at a place; without a word if on another device."""
        return not are_same(
            [
                (local_of(one).detach(), self._state[one][name])
                for one in parameters
                if one.is_cpu or name != self._here or local_of(one)._version != self._versions.get(one)
            ]
        )

    @torch.no_grad()
    def start_over(self) -> None:
        """Let the parameters be all of their places."""
        length.start_over(self._collective)
        for one in self._moved():
            for name in _NAMES:
                self._state[one][name].copy_(local_of(one))


def _here(parameters: list[Tensor]) -> list[Tensor]:
    return [local_of(one) for one in parameters]


def _step(each: Move) -> bool:
    """Move an iterate within what the parameter's type can hold; what is computed replaces the step."""
    torch.add(each.iterate, each.direction, alpha=-each.scale, out=each.direction)
    finite = each.direction.to(each.theta.dtype).isfinite()
    held = not bool(finite.all())
    if held:
        each.direction.copy_(torch.where(finite, each.direction, each.iterate))
    each.iterate.copy_(each.direction)
    return held
