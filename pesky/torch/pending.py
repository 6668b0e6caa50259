"""Curvature between backward passes and the step that uses it: summed up, as gradients are."""

from math import isfinite

import torch
from torch import Tensor

from pesky.torch.evaluating import Evaluation
from pesky.torch.sources import Values

__all__ = ["Pending"]


class Pending:
    """What has come since the last step."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.clear()

    def clear(self) -> None:
        """Forget it, as `zero_grad` forgets gradients."""
        self.values: Values = {}
        self.unmeasured = False  # whether there was a backward pass whose curvature nothing could tell
        self.loss = 0.0  # of all such passes
        self.shown_loss: float | None = None  # of all passes, as a user knows it
        self.loss_scale: float | None = None  # by which losses probably were multiplied under AMP
        self.passes = 0
        self.spared = False  # whether there was a backward pass whose curvature was not wanted
        self.evaluations: list[Evaluation] = []  # for the robust dialect
        self.first_passes: list[
            Evaluation
        ] = []  # that were ours, and whose buffers a skipped step forgets

    def add(self, values: Values, factor: float = 1.0) -> None:
        """Take in the curvature of one backward pass."""
        self.passes += 1
        for parameter, value in values.items():
            value = value.detach()
            if value.dtype in (torch.float16, torch.bfloat16):
                value = value.float()
            if factor != 1:
                value = value * factor
            before = self.values.get(parameter)
            self.values[parameter] = value if before is None else before + value

    def note_loss(self, loss: Tensor, scale: float | None) -> None:
        """Note the loss of a backward pass, which may have been multiplied for AMP."""
        self.shown_loss = (self.shown_loss or 0.0) + float(loss.detach()) / (scale or 1.0)

    @property
    def is_finite(self) -> bool:
        """Whether all losses are, so that there is something to measure."""
        return self.shown_loss is None or isfinite(self.shown_loss)

    def add_loss(self, loss: Tensor, factor: float = 1.0) -> None:
        """Take in a loss without curvature; see `polyak_curvature`."""
        self.passes += 1
        self.unmeasured = True
        self.loss += abs(float(loss.detach())) * factor
