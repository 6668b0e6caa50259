"""Where the parameters are: iterate or average; and which of them is visible."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pesky import length
from pesky.torch.passes.bundle import Part, statistics_type
from pesky.torch.passes.extent import Extent, are_within
from pesky.torch.passes.fused import Move, are_same, move
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import Direction
from pesky.torch.step.parts import fit

__all__ = ["Places"]

_NAMES = ("iterate", "average")


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

    def iterates(self) -> dict[Tensor, Tensor]:
        """Return the iterates of parameters that have moved."""
        return {one: self._state[one]["iterate"] for one in self._moved()}

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

    def begin(self, part: Part) -> None:
        """Give a parameter that is to move for the first time its places."""
        if "iterate" not in part.state:
            kind, theta = statistics_type(part.theta), part.theta.detach()
            part.state.update({name: theta.to(kind, copy=True) for name in _NAMES})

    @staticmethod
    def buffer_of(part: Part) -> Tensor:
        """Return memory for the direction of a step, which the end of the step frees."""
        return torch.empty_like(part.state["iterate"])

    @torch.no_grad()
    def attempt(self, direction: Direction, scale: float) -> None:
        """Set parameters to where a step of this scale would lead.

        Those that had no gradient are then at their iterates.
        """
        moving = {part.theta for part in direction.parts}
        others = [one for one in self._moved() if one not in moving]
        if others:
            torch._foreach_copy_(others, self._at("iterate", others))
        rest = []
        for part, value in zip(direction.parts, direction.values, strict=True):
            if part.theta.is_cpu:
                torch.add(part.state["iterate"], value, alpha=-scale, out=part.theta)
            else:
                rest.append(Move(part.theta, part.state["iterate"], value, part.state["average"], scale))
        for alike in _alike(rest):
            ends = torch._foreach_add(
                [each.iterate for each in alike], [each.direction for each in alike], alpha=-scale
            )
            torch._foreach_copy_([each.theta for each in alike], ends)

    @torch.no_grad()
    def move(self, direction: Direction, scales: list[float]) -> bool:
        """Take iterates into averages, and move on from them by -scale times their direction.

        An iterate is not in the average before the next batch has been content with it, so that the
        average is where to go back to. Entries that would not be finite stay; return whether there are
        any. The direction is used up.
        """
        held = False
        weight, shows_average = self._collective.count(), self._collective.prefers_average
        fusible: list[Move] = []
        rest: list[Move] = []
        extents: dict[Tensor, Extent | None] = {}
        others = dict.fromkeys(self._moved())  # a set, in order
        for part, value, scale, extent in zip(
            direction.parts, direction.values, scales, direction.extents, strict=True
        ):
            one, state = part.theta, part.state
            each = Move(one, state["iterate"], value, state["average"], scale)
            (fusible if each.is_fusible else rest).append(each)
            extents[one] = extent
            del others[one]
        for alike in _alike(fusible):
            held |= move(alike, weight, shows_average)
            self._shown |= {each.theta: "average" if shows_average else "iterate" for each in alike}
        for alike in _alike(rest):
            averages, iterates = [each.average for each in alike], [each.iterate for each in alike]
            torch._foreach_lerp_(averages, iterates, weight)
            held |= _step(alike, [extents[each.theta] for each in alike])
        if others:  # they had no gradient
            resting = list(others)
            torch._foreach_lerp_(self._at("average", resting), self._at("iterate", resting), weight)
        return held

    @torch.no_grad()
    def undo(self) -> None:
        """Go back to the average, if there is a step that it has not seen."""
        moved = self._moved()
        if moved and length.restore(self._collective):
            torch._foreach_copy_(self._at("iterate", moved), self._at("average", moved))

    def _is_changed(self, name: str) -> bool:
        """Whether parameters are not what was made visible.

        On another device nobody looks: that they were written to is taken for a change.
        """
        moved = self._moved()
        if any(not one.is_cpu and one._version != self._versions.get(one) for one in moved):
            return True
        return not are_same([(one.detach(), self._state[one][name]) for one in moved if one.is_cpu])

    @torch.no_grad()
    def start_over(self) -> None:
        """Let the parameters be all of their places."""
        length.start_over(self._collective)
        for one in self._moved():
            for name in _NAMES:
                self._state[one][name].copy_(one)


def _alike(moves: Iterable[Move]) -> list[list[Move]]:
    """Put together moves of one type and device."""
    alike: dict[tuple[torch.dtype, torch.device], list[Move]] = {}
    for each in moves:
        alike.setdefault((each.theta.dtype, each.theta.device), []).append(each)
    return list(alike.values())


def _step(alike: Sequence[Move], extents: Sequence[Extent | None]) -> bool:
    """Move iterates within what the parameters' type can hold; return whether entries stay."""
    known = [one for one in extents if one is not None]
    distances = [each.scale for each in alike]
    if len(known) == len(alike) and are_within(alike[0].theta.dtype, known, distances):
        steps = torch._foreach_mul([each.direction for each in alike], [-scale for scale in distances])
        torch._foreach_add_([each.iterate for each in alike], steps)
        return False
    held = [_step_alone(each) for each in alike]
    return any(held)


def _step_alone(each: Move) -> bool:
    """Move an iterate where that is finite; what is computed replaces the step."""
    torch.add(each.iterate, each.direction, alpha=-each.scale, out=each.direction)
    finite = each.direction.to(each.theta.dtype).isfinite()
    held = not bool(finite.all())
    if held:
        each.direction.copy_(torch.where(finite, each.direction, each.iterate))
    each.iterate.copy_(each.direction)
    return held
