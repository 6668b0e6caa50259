"""Checks of what a user can set."""

from typing import Any, Literal, get_args

from torch import Tensor

from pesky.errors import InputError, check_number

__all__ = ["Granularity", "check_choice", "check_group", "check_parameters"]

Granularity = Literal["element", "block", "global"]


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def check_group(group: dict[str, Any]) -> None:
    """Refuse settings of a parameter group that make no sense; a tensor lr is left as it is."""
    check_choice("granularity", group["granularity"], get_args(Granularity))
    if not isinstance(group["lr"], Tensor):
        check_number("lr", group["lr"], least=0)
    group["weight_decay"] = check_number("weight_decay", group["weight_decay"], least=0)
    if group["curvature_floor"] is not None:
        group["curvature_floor"] = check_number("curvature_floor", group["curvature_floor"], above=0)


def check_parameters(parameters: list[Tensor]) -> None:
    """Refuse parameters that have no real gradient."""
    for parameter in parameters:
        if parameter.is_complex():
            raise InputError(
                f"params must be real; got a complex tensor of shape {tuple(parameter.shape)}: "
                "optimise its real and imaginary part (torch.view_as_real) as two real tensors"
            )
