"""Whether a `state_dict` is one of ours, for these parameters; and how its tensors come back."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from pesky.errors import InputError
from pesky.torch.shards import local_of
from pesky.torch.step.levels import NO_LEVEL, State, has_level, mean_of
from pesky.torch.step.parts import keep

__all__ = [
    "check_keys",
    "check_shapes",
    "give_levels",
    "is_foreign",
    "restore_tensors",
    "without_previous",
]

_OWN_SETTING = "granularity"  # that no other optimizer's groups have
_BY_ROWS = ("initial",)  # what sparse gradients have a number a row for


def check_keys(state_dict: dict[str, Any]) -> None:
    """Refuse what is no state of any optimizer."""
    if not {"state", "param_groups"} <= set(state_dict):
        raise InputError(
            f"state_dict must be what state_dict() of an optimizer returned; got {sorted(state_dict)}"
        )


def is_foreign(state_dict: dict[str, Any]) -> bool:
    """Whether another optimizer made it."""
    groups, states = state_dict["param_groups"], state_dict["state"].values()
    return any(_OWN_SETTING not in group for group in groups) or any(
        "initial" not in state for state in states if state
    )


def without_previous(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Leave out the iterates before the last step, which states of up to 0.2 hold."""
    states = {
        number: {name: value for name, value in state.items() if name != "previous"}
        for number, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}


def check_shapes(state_dict: dict[str, Any], parameters: Sequence[Tensor]) -> None:
    """Refuse averages of other shapes than the parameters'."""
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    if len(numbers) != len(parameters):
        raise InputError(
            f"state_dict has {len(numbers)} parameters, the optimizer {len(parameters)}: "
            "make it with the same parameters in the same order"
        )
    for place, (number, parameter) in enumerate(zip(numbers, parameters, strict=True)):
        for name, value in state_dict["state"].get(number, {}).items():
            shape = local_of(parameter).shape
            wanted = shape[:1] if name in _BY_ROWS else shape
            if isinstance(value, Tensor) and value.shape != wanted:
                raise InputError(
                    f"state_dict has {name!r} of shape {tuple(value.shape)} for parameter {place} of "
                    f"shape {tuple(parameter.shape)}: it belongs to another model or order of parameters"
                )


def restore_tensors(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Load tensors as they were saved, after torch's own loading.

    Torch casts them to the type of the parameter, be it half precision, and shares their memory.
    """
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    ours = [one for group in optimizer.param_groups for one in group["params"]]
    for number, parameter in zip(numbers, ours, strict=True):
        if saved := state_dict["state"].get(number):
            keep(parameter, optimizer.state[parameter], saved)


def give_levels(states: Iterable[State]) -> bool:
    """Give robust states of up to 0.2 a level, yet to be measured, in place of curvatures.

    The memory of a tensor is the mean of those that its entries had.

    Return whether there were any. Rows of sparse gradients still have curvatures.
    """
    old = [
        state
        for state in states
        if not has_level(state) and "initial" in state and not isinstance(state["initial"], Tensor)
    ]
    for state in old:
        state.pop("mean_curvature", None)
        state.pop("trusted", None)
        state |= NO_LEVEL
        if "mean_square" in state:
            state["typical_square"] = mean_of(state["mean_square"])
            state["memory"] = mean_of(state["memory"])
    return bool(old)
