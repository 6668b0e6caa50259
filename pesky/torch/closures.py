"""What an optimizer's `step(closure)` means in torch."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["loss_of"]


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return what a closure, which runs the backward pass, returns; None if there is none."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
