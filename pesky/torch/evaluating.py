"""A batch whose loss can be evaluated again, at other parameters and with the same randomness."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pesky.torch.again import (
    RandomState,
    noted_buffers,
    put_back,
    random_state,
    same_randomness,
    untouched_buffers,
)

__all__ = ["Evaluation", "Manner", "first_pass", "given_again"]

Closure = Callable[[], Tensor]

_NEEDS_GRAPH = "does not require grad"  # in torch's words where a closure differentiates without a graph


@dataclass
class Manner:
    """How an optimizer's losses are evaluated again: with a graph if closures differentiate."""

    with_graph: bool = False


class Evaluation:
    """The loss of one batch; `buffers`, as they were before its first pass, are None if not known."""

    def __init__(
        self,
        closure: Closure,
        loss: Tensor,
        state: RandomState,
        buffers: dict[Tensor, Tensor] | None,
        manner: Manner,
    ) -> None:
        """Note what a first pass found."""
        self.is_repeatable = buffers is not None  # whether `again` has the randomness of the first pass
        self._closure = closure
        self._state = state
        self._buffers = buffers
        self._manner = manner
        self.loss = float(loss.detach())
        self.rounding = torch.finfo(loss.dtype).eps

    def again(self, keep_buffers: bool = False) -> float:
        """Return the loss at the present parameters.

        With `keep_buffers` the buffers are afterwards as if this had been the only pass.
        """
        if self._buffers is None:
            with untouched_buffers():
                return self._loss()
        after = {buffer: buffer.clone() for buffer in self._buffers}
        put_back(self._buffers)
        is_done = False
        try:
            loss = self._loss()
            is_done = True
            return loss
        finally:
            if not (keep_buffers and is_done):
                put_back(after)

    def record_graph(self) -> bool:
        """Let this and later evaluations have a graph; return whether they had none."""
        had, self._manner.with_graph = self._manner.with_graph, True
        return not had

    def repeat(self) -> None:
        """Make sure that the loss has the randomness of later ones, such as dropout masks."""
        if not self.is_repeatable:
            self.loss, self.is_repeatable = self.again(), True

    @property
    def has_statistics(self) -> bool:
        """Whether the first pass changed buffers."""
        return any(not torch.equal(*pair) for pair in (self._buffers or {}).items())

    def forget_buffers(self) -> None:
        """Undo what the first pass did to buffers."""
        put_back(self._buffers or {})

    def _loss(self) -> float:
        if not self._manner.with_graph:
            try:
                with torch.no_grad():
                    return self._value()
            except RuntimeError as error:
                if _NEEDS_GRAPH not in str(error):
                    raise
            self._manner.with_graph = True
            put_back(self._buffers or {})
        with torch.enable_grad():
            return self._value()

    def _value(self) -> float:
        with same_randomness(self._state):
            found: Any = self._closure()
        return float(found.detach() if isinstance(found, Tensor) else found)


def first_pass(closure: Closure) -> tuple[Tensor, RandomState, dict[Tensor, Tensor]]:
    """Compute a loss with its graph; return it with random state and buffers as they were before."""
    state = random_state()
    with torch.enable_grad(), noted_buffers() as buffers:
        try:
            return closure(), state, buffers
        except BaseException:
            put_back(buffers)
            raise


def given_again(closure: Closure, loss: Tensor, will_repeat: bool, manner: Manner) -> Evaluation:
    """Return the evaluation of a loss whose first pass was not ours: the closure sets the randomness."""
    found = Evaluation(closure, loss, random_state(), None, manner)
    if will_repeat:
        found.repeat()
    return found
