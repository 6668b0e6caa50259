"""Which source of curvature is used for a loss, and what happens when it cannot tell."""

from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from pesky.errors import InputError
from pesky.torch.curvature import UnsupportedGraph, curvature_of
from pesky.torch.curvature.sources import Callback, Values, call, hutchinson
from pesky.torch.words import say

__all__ = ["Choice", "CurvatureSource", "Found"]

Choice: TypeAlias = Literal["bbprop", "finite-difference", "hutchinson"] | Callback
_NAMES = ("bbprop", "finite-difference", "hutchinson")


class Found(NamedTuple):
    """The source used, and what it found; None where it can only work after the backward pass."""

    source: str
    values: Values | None


class CurvatureSource:
    """Asks the source that the user chose, and another where that one cannot work.

    Where nobody chose, it depends on what is wanted. For levels of tensors that is how the gradient
    changes along random signs: by a finite difference if the loss can be evaluated again, else by
    Hutchinson's products, if the graph has second derivatives, else by bbprop. For entries it is bbprop.

    For bbprop, losses without any curvature (L1, hinge) get Polyak's estimate, |gradient|^2 / loss: over
    a small step their gradient does not change at all. Where it cannot walk the graph (compiled models,
    re-entrant checkpoints) finite differences come nearest to it, if the loss can be evaluated again;
    else Hutchinson's products, if the graph allows them; else Polyak's estimate, too.
    """

    def __init__(self, choice: Choice | None) -> None:
        """Check the choice; None is none."""
        if choice is not None and not callable(choice) and choice not in _NAMES:
            raise InputError(
                f"curvature must be one of {', '.join(map(repr, _NAMES))} or a function; got {choice!r}"
            )
        self.choice = choice
        self._said: set[str] = set()

    def waits(self, for_levels: bool) -> bool:
        """Whether it works after the backward pass, if the loss can be evaluated again."""
        return self.choice == "finite-difference" or (self.choice is None and for_levels)

    def before_backward(
        self,
        loss: Tensor,
        parameters: list[Tensor],
        *,
        can_repeat: bool,
        seed: int,
        for_levels: bool,
        known_curved: bool = False,
        upstream: Tensor | None = None,
    ) -> Found:
        """Measure on the graph of the loss, which the backward pass will free.

        A loss that is `known_curved` only happens to be flat, as a saturated softmax is, where bbprop
        finds nothing.
        """
        if self.choice is None and for_levels:
            if can_repeat:
                return Found("finite-difference", None)
            try:
                return Found("hutchinson", self._scaled(hutchinson(loss, parameters, seed), upstream))
            except RuntimeError:  # some operations, such as fused attention, have no second derivative
                return self._say(
                    "the graph has no second derivatives",
                    self._by_walk(loss, parameters, can_repeat, seed, upstream, known_curved),
                )
        if callable(self.choice):
            return Found("callable", self._scaled(call(self.choice, loss, parameters), upstream))
        if self.choice == "hutchinson":
            return Found("hutchinson", self._scaled(hutchinson(loss, parameters, seed), upstream))
        if self.choice == "finite-difference":
            if not can_repeat:
                raise InputError(
                    "curvature='finite-difference' evaluates the loss twice: use "
                    "optimizer.minimize(closure), or optimizer.backward(loss, again=closure)"
                )
            return Found("finite-difference", None)
        return self._by_walk(loss, parameters, can_repeat, seed, upstream, known_curved)

    def after_backward(self, for_levels: bool) -> str | None:
        """Return what can be measured where the graph is gone and the loss can be evaluated again."""
        if self.choice == "finite-difference" or (self.choice is None and for_levels):
            return "finite-difference"
        if self.choice is not None:
            return None
        reason = "the closure runs backward() itself, which frees the graph"
        return self._say(reason, Found("finite-difference", None)).source

    def _by_walk(
        self,
        loss: Tensor,
        parameters: list[Tensor],
        can_repeat: bool,
        seed: int,
        upstream: Tensor | None,
        known_curved: bool,
    ) -> Found:
        """Ask bbprop."""
        try:
            found = curvature_of(loss, parameters, upstream=upstream)
        except UnsupportedGraph as problem:
            return self._without_bbprop(loss, parameters, can_repeat, seed, upstream, problem)
        if found.curved or known_curved:
            return Found("bbprop", found.values)
        reason = "the loss has no curvature of its own (such as L1 or hinge)"
        return self._say(reason, Found("polyak", None))

    def _without_bbprop(
        self,
        loss: Tensor,
        parameters: list[Tensor],
        can_repeat: bool,
        seed: int,
        upstream: Tensor | None,
        problem: Exception,
    ) -> Found:
        reason = f"bbprop cannot walk this graph ({problem})"
        if can_repeat:
            return self._say(reason, Found("finite-difference", None))
        try:
            values = self._scaled(hutchinson(loss, parameters, seed), upstream)
        except RuntimeError:  # compiled models and re-entrant checkpoints have no second derivative
            return self._say(reason, Found("polyak", None))
        return self._say(reason, Found("hutchinson", values))

    def _say(self, reason: str, found: Found) -> Found:
        if found.source not in self._said:
            self._said.add(found.source)
            say(f"{reason}; its curvature comes from {found.source!r}")
        return found

    @staticmethod
    def _scaled(values: Values, upstream: Tensor | None) -> Values:
        if upstream is None:
            return values
        return {parameter: value * upstream for parameter, value in values.items()}
