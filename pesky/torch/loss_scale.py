"""Scaled losses (torch.amp.GradScaler): gradients and curvatures carry the factor, steps must not."""

from typing import Any

from torch import Tensor

from pesky.errors import InputError
from pesky.torch.pending import Pending

__all__ = ["loss_scale_of", "unscaling"]


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
