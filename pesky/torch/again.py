"""Evaluate a loss a second time and leave no trace: randomness, buffers and parameters as before."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import _global_forward_pre_hooks, register_module_forward_pre_hook

__all__ = [
    "RandomState",
    "moved",
    "noted_buffers",
    "put_back",
    "random_state",
    "same_randomness",
    "untouched_buffers",
]

RandomState = tuple[Tensor, list[Tensor]]


def random_state() -> RandomState:
    """Return the state of torch's generators, of the CPU and of all GPUs in use."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if on_gpu else []


def _set_random_state(state: RandomState) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


@contextmanager
def same_randomness(state: RandomState | None) -> Iterator[None]:
    """Draw the same numbers as after `state` was taken (dropout masks); put back the present state."""
    present = random_state()
    if state is not None:
        _set_random_state(state)
    try:
        yield
    finally:
        _set_random_state(present)


_noted: list[dict[Tensor, Tensor]] = []


def _note(module: torch.nn.Module, inputs: Any) -> None:
    if torch.compiler.is_compiling():  # what is inside a compiled model is noted when that is called
        return
    for buffer in module.buffers(recurse=hasattr(module, "_orig_mod")):
        for before in _noted:
            if buffer not in before:
                before[buffer] = buffer.detach().clone()


# torch.compile checks the keys of hooks: under another one each time, it would compile each time.
_handle = register_module_forward_pre_hook(_note)
_handle.remove()


@contextmanager
def noted_buffers() -> Iterator[dict[Tensor, Tensor]]:
    """Note the buffers (batch norm's averages) of every module called meanwhile, as they were."""
    before: dict[Tensor, Tensor] = {}
    try:  # from here on: Ctrl-C may come between any two lines
        _noted.append(before)
        _global_forward_pre_hooks[_handle.id] = _note
        yield before
    finally:
        _noted[:] = [one for one in _noted if one is not before]
        if not _noted:
            _global_forward_pre_hooks.pop(_handle.id, None)


@torch.no_grad()
def put_back(buffers: dict[Tensor, Tensor]) -> None:
    """Give buffers the values that were noted."""
    for buffer, value in buffers.items():
        buffer.copy_(value)


@contextmanager
def untouched_buffers() -> Iterator[None]:
    """Put back the buffers of every module that is called meanwhile."""
    with noted_buffers() as before:
        try:
            yield
        finally:
            put_back(before)


@contextmanager
def moved(parameters: Sequence[Tensor], steps: Sequence[Tensor]) -> Iterator[None]:
    """Add steps to parameters, and put back the same bits afterwards."""
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, step in zip(parameters, steps, strict=True):
            parameter.add_(step)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


def gradients_again(again: Callable[[], Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of the loss that `again` computes; `.grad` is not touched."""
    with torch.enable_grad():
        loss = again()
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]
