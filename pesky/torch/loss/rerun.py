"""Closures that run their backward pass themselves, as torch's optimizers expect of `step(closure)`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pesky.torch.loss.again import (
    Evaluation,
    Manner,
    Unrepeatable,
    kept_gradients,
    noted_buffers,
    put_back,
    random_state,
    repeating,
    same_randomness,
    untouched_buffers,
)
from pesky.torch.loss.graph import leaves_below

__all__ = ["Rerun"]


class Rerun(Evaluation):
    """The loss of such a closure; gradients that are there stay what they are when it is run again."""

    def __init__(self, closure: Callable[[], Any], parameters: Sequence[Tensor]) -> None:
        """Run it for the first time."""
        state = random_state()
        with torch.enable_grad(), noted_buffers() as buffers:
            try:
                self.returned = closure()
            except BaseException:
                put_back(buffers)
                raise
        self._run = closure
        self._ours = parameters
        loss = _loss_of(self.returned)
        self.has_loss = loss is not None
        loss = torch.zeros(()) if loss is None else loss
        super().__init__(self._run_again, loss, state, buffers, Manner(with_graph=True))

    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients that the closure leaves at the present parameters."""
        with (
            kept_gradients(self._reached()),
            same_randomness(self._state),
            untouched_buffers(),
            repeating(),
            torch.enable_grad(),
        ):
            self._run()
            return [one.grad for one in parameters]

    def _run_again(self) -> Tensor:
        with kept_gradients(self._reached()):
            found = _loss_of(self._run())
        if found is None:
            raise Unrepeatable("the closure returned a loss the first time, and none later")
        return found

    def _reached(self) -> list[Tensor]:
        """Return whose gradients the closure may change, be they another optimizer's parameters."""
        others = leaves_below(self.returned) if isinstance(self.returned, Tensor) else []
        return [*self._ours, *others]


def _loss_of(returned: Any) -> Tensor | None:
    """Return the loss that a closure returned, which may be a number; None if it is none."""
    if isinstance(returned, Tensor) and returned.numel() == 1:
        return returned
    return torch.tensor(float(returned)) if isinstance(returned, int | float) else None
