"""One part after another: what kernels do not do, and where entries have to be looked at."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pesky.torch.passes.bundle import Part, statistics_type
from pesky.torch.passes.extent import set_finite
from pesky.torch.settings import l2_of

__all__ = ["go_along", "sample_of", "slope_of", "total"]


def sample_of(part: Part, theta: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return gradient and curvature of these parameters, unscaled and with L2."""
    decay, kind = l2_of(part.group), statistics_type(part.theta)
    gradient = part.gradient.to(kind) * part.gradient_factor + decay * theta.to(kind)
    if part.curvature is None:
        return gradient, None
    return gradient, abs(part.curvature.to(kind) * part.curvature_factor) + decay


def slope_of(gradient: Tensor, direction: Tensor, factor: float) -> float:
    """Return gradient times direction, times a factor."""
    return float(factor * (gradient * direction).sum())


def total(numbers: Sequence[float]) -> float:
    """Return the sum, in torch's order."""
    return float(torch.tensor(numbers, dtype=torch.float64).sum())


def go_along(part: Part, direction: Tensor, distance: float, share: float) -> bool:
    """Move a parameter along a direction and let a share of it decay; return whether entries stay."""
    before = part.theta.to(direction.dtype)
    moved = before.add(direction, alpha=-distance)
    part.state.pop("decayed", None)
    if share > 0:
        part.state["decayed"] = share * before
        moved -= part.state["decayed"]
    return set_finite(part.theta, moved)
