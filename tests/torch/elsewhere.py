"""A device of our own: its tensors compute, and every operation and wait for them is counted.

No GPU is needed. A tensor "elsewhere" says that it is on torch's device `meta` and holds one of the
CPU, which no code but this can see. As on a GPU, operations refuse tensors of both places, except for
single numbers; what brings numbers to the host is a synchronisation.
"""

from collections import Counter
from contextlib import contextmanager
from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

DEVICE = torch.device("meta")

# What a host has to wait for although it returns tensors: their shapes depend on values.
_WAITING = ("nonzero", "masked_select", "unique", "unique_dim", "unique_consecutive", "_unique2")


class Elsewhere(torch.Tensor):
    """A tensor of the device; made from one of the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _computed(function, args, kwargs or {})

    def tolist(self):  # torch has none for subclasses; on a device it is a copy and a list
        return self.cpu().tolist()

    def __repr__(self):
        return f"Elsewhere({self.inner!r})"


class Elsewhen(TorchDispatchMode):
    """While entered: tensors are made on the device, and `operations` and `waits` are counted."""

    def __init__(self):
        super().__init__()
        self.operations, self.waits = Counter(), Counter()
        self.is_counting = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = _computed(function, args, kwargs)
        if self.is_counting:
            self.operations[str(function)] += 1
            if _is_wait(function, args, found):
                self.waits[str(function)] += 1
        return found

    @contextmanager
    def paused(self):
        """Count nothing meanwhile."""
        before, self.is_counting = self.is_counting, False
        try:
            yield
        finally:
            self.is_counting = before

    def uncounted(self, function):
        """Return a function whose operations do not count."""

        def called(*args, **kwargs):
            with self.paused():
                return function(*args, **kwargs)

        return called

    def clear(self):
        self.operations.clear()
        self.waits.clear()


def sent(tensor):
    """Return a copy of a tensor of the CPU on the device; a leaf stays one."""
    return Elsewhere(tensor.detach().clone()).requires_grad_(tensor.requires_grad)


def send(module):
    """Move a module's parameters and buffers to the device, in place."""
    for one in module.modules():
        for name, parameter in list(one._parameters.items()):
            if parameter is not None:
                moved = Elsewhere(parameter.detach().clone())
                one._parameters[name] = torch.nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in list(one._buffers.items()):
            if buffer is not None:
                one._buffers[name] = Elsewhere(buffer.detach().clone())
    return module


def fetched(tensor):
    """Return what a tensor of the device holds, without a wait."""
    return tensor.inner if isinstance(tensor, Elsewhere) else tensor


def _tensors(args):
    """Return the tensors among arguments, of which some are lists."""
    found = []
    for one in args:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += [each for each in one if isinstance(each, torch.Tensor)]
    return found


def _mapped(function, one):
    """Apply a function to what is a tensor, or a list of some."""
    if isinstance(one, list | tuple):
        return type(one)(map(function, one))
    return function(one)


def _inner(one):
    return one.inner if isinstance(one, Elsewhere) else one


def _wrapped(one):
    return Elsewhere(one) if isinstance(one, torch.Tensor) else one


def _computed(function, args, kwargs):
    tensors = _tensors((*args, *kwargs.values()))
    is_there = any(isinstance(one, Elsewhere) for one in tensors)
    to = kwargs.get("device")
    to = None if to is None else torch.device(to)
    if not is_there and to != DEVICE:
        return function(*args, **kwargs)
    name = function._schema.name
    if name not in ("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_"):
        strangers = [one for one in tensors if not isinstance(one, Elsewhere) and one.dim() > 0]
        assert not strangers, f"{name} got tensors of both devices"
    inner_args = [_mapped(_inner, one) for one in args]
    inner_kwargs = {key: _mapped(_inner, one) for key, one in kwargs.items()}
    if to == DEVICE:
        inner_kwargs["device"] = torch.device("cpu")
    found = function(*inner_args, **inner_kwargs)
    if to is not None and to != DEVICE:
        return found
    found = _mapped(_wrapped, found)
    if not is_there:
        return found
    if name == "aten::copy_" and not isinstance(args[0], Elsewhere):
        return args[0]
    if _gives_new(function):
        return found
    return return_and_correct_aliasing(function, args, kwargs, found)


@cache
def _gives_new(function):
    """Whether what an operation returns shares no memory with what it was given."""
    return all(one.alias_info is None for one in function._schema.returns)


def _is_wait(function, args, found):
    """Whether the host has to wait for the device."""
    tensors = _tensors(args)
    if not any(isinstance(one, Elsewhere) for one in tensors):
        return False
    name = function._schema.name.removeprefix("aten::")
    if name in ("copy_", "_to_copy"):
        return not isinstance(args[0] if name == "copy_" else found, Elsewhere)
    if name == "index":
        return any(one.dtype in (torch.bool, torch.uint8) for one in tensors[1:])
    return name in _WAITING or isinstance(found, bool | int | float)
