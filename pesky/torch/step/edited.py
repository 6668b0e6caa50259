"""The slope of the loss along a step whose gradients were edited on the way, as by clipping.

The direction is made of gradients as they are given. How the loss changes along it is a matter of the
loss's own gradient, and so is the curvature that is told from that change.
"""

import torch
from torch import Tensor

from pesky.torch.loss.gradients import Left
from pesky.torch.loss.losses import Losses
from pesky.torch.step.direction import Direction

__all__ = ["slope_of"]

_ONE = 1e-3  # what a factor may differ from 1 by rounding


def slope_of(direction: Direction, losses: Losses, left: Left | None) -> float:
    """Return the slope of the loss along a direction; `left` is known of gradients before any edit.

    Where that slope is not downhill, the one of the edited gradients has to do.
    """
    if left is None or not direction.slope > 0:
        return direction.slope
    given = [part.gradient * part.gradient_factor for part in direction.parts]
    factor = left.factor()
    if factor is None:
        found = losses.gradients([part.theta for part in direction.parts])
        pairs = zip(found, given, strict=True)
        missing = [-edited if own is None else own - edited for own, edited in pairs]
    else:  # a GradScaler's factor, too, if that is off already
        factor *= direction.parts[0].gradient_factor / direction.parts[0].curvature_factor
        if abs(factor - 1) < _ONE:
            return direction.slope
        missing = [(1 / factor - 1) * one for one in given]
    slope = direction.slope + losses.mean(_product(missing, direction.values))
    return slope if slope > 0 else direction.slope


def _product(ones: list[Tensor], others: list[Tensor]) -> float:
    pairs = zip(ones, others, strict=True)
    return float(torch.stack([(one * other).double().sum().cpu() for one, other in pairs]).sum())
