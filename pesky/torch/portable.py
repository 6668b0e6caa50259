"""The state in a form that `torch.distributed.checkpoint` can save, and load for other processes.

It loads into the memory of a state that a fresh optimizer shows, so every state must have the same
tensors, whatever has happened; and it carries nothing but what belongs to parameters or their groups.
So the places of a parameter have neutral names here, as they depend on the form of the steps; all
numbers about a parameter are one text, and whatever the optimizer has besides is in its first group.
Tensors of which a process has a part are DTensors again.
"""

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pesky.torch.passes.bundle import statistics_type
from pesky.torch.shards import local_of, whole_like
from pesky.torch.step.parts import State, begin

__all__ = ["is_preparation", "ported", "unported"]

_NUMBERS = "numbers"  # about a parameter
_REST = "optimizer"  # what does not belong to a parameter
_SLOTS = ("first_place", "second_place")
_PLACES = ("iterate", "average", "direction", "decayed")  # at most two of them are there


def is_preparation(groups: Iterable[dict[str, Any]]) -> bool:
    """Whether a call of `step` is none, but to see to it that there is a state.

    For that torch.distributed.checkpoint sets lr and all gradients to zero.
    """
    groups = list(groups)
    gradients = [one.grad for group in groups for one in group["params"] if one.grad is not None]
    if not gradients or any(float(group["lr"]) != 0 for group in groups):
        return False
    return not any(bool(local_of(one).any()) for one in gradients)


def ported(
    state_dict: dict[str, Any],
    groups: Iterable[dict[str, Any]],
    rest: dict[str, Any],
    has_levels: bool,
) -> dict[str, Any]:
    """Bring the `state_dict` of these groups into this form, with the rest of what is to be saved.

    Parameters that have not taken a step have what they would begin with; see `begin`.
    """
    states = dict(state_dict["state"])
    ours = [(one, group["granularity"]) for group in groups for one in group["params"]]
    for number, (parameter, granularity) in enumerate(ours):
        state = states.get(number)
        if state is None and parameter.requires_grad:
            state = begin(parameter, granularity, False, has_levels)
        if state is not None and not isinstance(state["initial"], Tensor):
            states[number] = _ported(state, parameter)
    first, *others = state_dict["param_groups"]
    return {**state_dict, "state": states, "param_groups": [{**first, _REST: json.dumps(rest)}, *others]}


def _ported(state: State, parameter: Tensor) -> State:
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in state.items() if name not in tensors}
    places = [name for name in _PLACES if name in tensors]
    found = {name: value for name, value in tensors.items() if name not in _PLACES}
    if "mean_curvature" not in found or places:  # the robust dialect has places, sooner or later
        for slot, place in zip(_SLOTS, [*places, None, None], strict=False):
            found[slot] = _nothing_like(parameter) if place is None else tensors[place]
    whole = {name: whole_like(parameter, value) for name, value in found.items()}
    return {**whole, _NUMBERS: json.dumps({**numbers, "places": places})}


def _nothing_like(parameter: Tensor) -> Tensor:
    here = local_of(parameter)
    return torch.zeros_like(here, dtype=statistics_type(here), requires_grad=False)


def unported(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Undo `ported`."""
    if not any(_REST in group for group in state_dict["param_groups"]):
        return state_dict
    states = {number: _unported(state) for number, state in state_dict["state"].items()}
    groups = [dict(group) for group in state_dict["param_groups"]]
    rest: dict[str, Any] = {}
    for group in groups:
        rest |= json.loads(group.pop(_REST, "{}"))
    return {**state_dict, **rest, "state": states, "param_groups": groups}


def _unported(state: State) -> State:
    if _NUMBERS not in state:  # it is about rows of sparse gradients
        return state
    numbers = json.loads(state[_NUMBERS])
    places = numbers.pop("places")
    slots = dict(zip(_SLOTS, places, strict=False))
    tensors = {
        slots.get(name, name): local_of(value)
        for name, value in state.items()
        if isinstance(value, Tensor) and (name in slots or name not in _SLOTS)
    }
    return {**tensors, **numbers}
