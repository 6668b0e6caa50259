"""A batch whose loss can be evaluated again, at other parameters and with the same randomness."""

from collections.abc import Callable

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

__all__ = ["Evaluation", "first_pass", "given_again"]

Closure = Callable[[], Tensor]


class Evaluation:
    """The loss of one batch; `buffers`, as they were before its first pass, are None if not known."""

    def __init__(
        self, closure: Closure, loss: Tensor, state: RandomState, buffers: dict[Tensor, Tensor] | None
    ) -> None:
        """Note what a first pass found."""
        self.is_repeatable = buffers is not None  # whether `again` has the randomness of the first pass
        self._closure = closure
        self._state = state
        self._buffers = buffers
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
        try:
            return self._loss()
        finally:
            if not keep_buffers:
                put_back(after)

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
        with torch.no_grad(), same_randomness(self._state):
            return float(self._closure())


def first_pass(closure: Closure) -> tuple[Tensor, RandomState, dict[Tensor, Tensor]]:
    """Compute a loss with its graph; return it with random state and buffers as they were before."""
    state = random_state()
    with torch.enable_grad(), noted_buffers() as buffers:
        return closure(), state, buffers


def given_again(closure: Closure, loss: Tensor, will_repeat: bool) -> Evaluation:
    """Return the evaluation of a loss whose first pass was not ours: the closure sets the randomness."""
    found = Evaluation(closure, loss, random_state(), None)
    if will_repeat:
        found.repeat()
    return found
