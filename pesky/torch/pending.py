"""Curvature between backward passes and the step that uses it: summed up, as gradients are."""

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
        self.loss_scale: float | None = None  # by which losses probably were multiplied under AMP
        self.passes = 0
        self.spared = False  # whether there was a backward pass whose curvature was not wanted
        self.evaluations: list[Evaluation] = []  # for the robust dialect

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

    def add_loss(self, loss: Tensor, factor: float = 1.0) -> None:
        """Take in a loss without curvature; see `polyak_curvature`."""
        self.passes += 1
        self.unmeasured = True
        self.loss += abs(float(loss.detach())) * factor
