"""What a user can set: checks, and what settings of weight decay mean."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pesky.errors import InputError, check_number

__all__ = [
    "Granularity",
    "check_choice",
    "check_flag",
    "check_group",
    "check_parameters",
    "decoupled_of",
    "l2_of",
]

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Granularity = Literal["element", "block", "global"]


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse a value that is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False; got {value!r}")


def check_group(group: dict[str, Any]) -> None:
    """Refuse settings of a parameter group that make no sense; a tensor lr is left as it is."""
    check_choice("granularity", group["granularity"], get_args(Granularity))
    if not isinstance(group["lr"], Tensor):
        check_number("lr", group["lr"], least=0)
    group["weight_decay"] = check_number("weight_decay", group["weight_decay"], least=0)
    check_flag("decoupled_weight_decay", group["decoupled_weight_decay"])
    if group["curvature_floor"] is not None:
        group["curvature_floor"] = check_number("curvature_floor", group["curvature_floor"], above=0)


def check_parameters(parameters: Sequence[Tensor], names: Sequence[str] | None = None) -> None:
    """Refuse parameters of a type that has no real gradient, or that torch cannot compute with."""
    for number, parameter in enumerate(parameters):
        if parameter.dtype in _TYPES:
            continue
        which = f"parameter {number}" if names is None else repr(names[number])
        shown = f"{which} of type {parameter.dtype} and shape {tuple(parameter.shape)}"
        if parameter.is_complex():
            raise InputError(
                f"params must be real; got a complex tensor, {shown}: optimise its real and imaginary "
                "part (torch.view_as_real) as two real tensors"
            )
        shown_types = ", ".join(str(one).removeprefix("torch.") for one in _TYPES)
        raise InputError(
            f"params must be of one of the types {shown_types}; got {shown}: keep parameters in "
            "bfloat16, and convert them where the model uses them"
        )


def l2_of(group: dict[str, Any]) -> float:
    """Return the factor of the L2 penalty, which is in losses, gradients and curvatures."""
    return 0.0 if group["decoupled_weight_decay"] else float(group["weight_decay"])


def decoupled_of(group: dict[str, Any]) -> float:
    """Return the factor of decoupled weight decay, which is in none of them; see `step/decay.py`."""
    return float(group["weight_decay"]) if group["decoupled_weight_decay"] else 0.0
