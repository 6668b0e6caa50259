"""What backward passes leave for the step: curvatures, summed up as gradients are, and losses.

Scaled losses (torch.amp.GradScaler): gradients and curvatures carry the factor, steps must not.
"""

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from pesky.errors import InputError
from pesky.torch.curvature.sources import Values
from pesky.torch.loss.again import Evaluation

__all__ = ["Pending", "loss_scale_of", "unscaling"]


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
        # Passes that were ours, and whose buffers a skipped step forgets.
        self.first_passes: list[Evaluation] = []

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


def loss_scale_of(loss: Tensor) -> float | None:
    """Return the constant that a loss was multiplied with at last, as GradScaler.scale does."""
    node = loss.grad_fn
    if node is None or node.name() != "MulBackward0" or len(node.next_functions) != 2:
        return None
    if node.next_functions[1][0] is not None:  # the second factor has a gradient: no constant
        return None
    factor = getattr(node, "_saved_other", None)
    return float(factor) if isinstance(factor, Tensor) and factor.dim() == 0 else None


def unscaling(optimizer: Any, pending: Pending) -> tuple[float, float] | None:
    """Return what to multiply gradients and curvatures with; None: GradScaler wants the step skipped.

    Inside `scaler.step(optimizer)` the scaler leaves two attributes with the optimizer. If there is
    no scale among them, `scaler.unscale_` has divided the gradients already, but not the curvatures.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return 1.0, 1.0
    if float(found_inf) > 0:
        return None
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        return 1 / float(scale), 1 / float(scale)
    if pending.passes == 0:
        return 1.0, 1.0
    if pending.loss_scale is None:
        raise InputError(
            "scaler.unscale_(optimizer) divided the gradients, but by how much the curvature must be "
            "divided is not known: use optimizer.watch(module, scaler=scaler), "
            "optimizer.backward(loss, scaler=scaler) or optimizer.backward(scaler.scale(loss))"
        )
    return 1.0, 1 / pending.loss_scale
