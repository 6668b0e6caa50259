"""What is known of an operation: its squared Jacobian, and its second derivative."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pesky.torch.curvature.node import Node, Tensors

__all__ = ["Pass", "Rule"]

Pass: TypeAlias = Callable[[Node, Tensors], Tensors]


@dataclass(frozen=True)
class Rule:
    """How curvature passes an operation y = f(x), given as functions of what arrives at its outputs.

    `squared` takes h of y to sum_i (dy_i/dx_j)^2 h_i. `bend` takes slopes s = dL/dy to
    sum_i s_i d^2 y_i / dx_j^2; None, for the whole or for an input, says that f is linear in it, or
    piecewise linear.
    """

    squared: Pass
    bend: Pass | None = None
    outer: bool = False  # concave, or half of a loss: only together with what is inside does it bend
    mixes: bool = False  # sums over many inputs with weights: a layer, if they are not constant
    kinked: bool = False  # all of its curvature sits in a kink, as in |x|
