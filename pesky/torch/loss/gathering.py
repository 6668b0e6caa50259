"""Modules that gather their parameters from all processes for a pass (`fully_shard`).

They keep what they have gathered as long as they think it is of use. Where parameters have been moved
meanwhile, as a step does between two passes, it is out of date.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_pre_hooks, register_module_forward_pre_hook

from pesky.errors import InputError
from pesky.torch import words
from pesky.torch.curvature.sources import Values
from pesky.torch.processes import largest_over
from pesky.torch.shards import is_sharded, mean_here

__all__ = ["Gathered", "gathered", "gathering_anew", "managed"]

_called: list[list[Any]] = []


def _forget(module: nn.Module, inputs: Any) -> None:
    if not torch.compiler.is_compiling() and isinstance(module, _fully_sharded()):
        module.reshard()
        for called in _called:
            called.append(module)


def _fully_sharded() -> Any:
    """Return the type of such modules; none has it if nobody has imported it."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())


# torch.compile checks the keys of hooks: under another one each time, it would compile each time.
_handle = register_module_forward_pre_hook(_forget)
_handle.remove()


@contextmanager
def gathering_anew(is_last: bool = False) -> Iterator[None]:
    """Let modules that are called meanwhile gather their parameters as they are now.

    After a pass that `is_last`, as no backward pass follows, they are let go of what they have gathered.
    """
    if not _managers():  # hooks on all modules would be a burden to those that are compiled
        yield
        return
    called: list[Any] = []
    try:
        _called.append(called)
        _global_forward_pre_hooks[_handle.id] = _forget
        yield
    finally:
        _called[:] = [one for one in _called if one is not called]
        if not _called:
            _global_forward_pre_hooks.pop(_handle.id, None)
        if is_last:
            for module in called:
                module.reshard()


# --- Graphs that are walked, or differentiated twice ---------------------------------------------------


class Gathered(NamedTuple):
    """Parameters as the graph of a loss knows them: whole."""

    parameters: list[Tensor]  # of which some stand for those that are sharded
    sharded: dict[Tensor, Tensor]  # by what stands for them

    def spread(self, values: Values, among: Any) -> Values:
        """Return the parts that are here of means over all processes, as backward passes do.

        What is not sharded stays as it is. A value that only some processes have is 0 in the others.
        """
        there = largest_over([float(one in values) for one in self.sharded], among)
        found = {one: value for one, value in values.items() if one not in self.sharded}
        for (one, parameter), is_there in zip(self.sharded.items(), there, strict=True):
            if is_there:
                value = values[one] if one in values else torch.zeros_like(one)
                found[parameter] = mean_here(value.detach().to_dense(), parameter)
        return found


@contextmanager
def gathered(parameters: Sequence[Tensor]) -> Iterator[Gathered]:
    """Let the graph of a loss have the parameters back that it has saved, and modules let go of.

    Backward passes leave them there meanwhile, and gradients alone.
    """
    managers = _managers_of(parameters)
    for manager in managers:
        manager.module.unshard()
    known = {one: whole for manager in managers for one, whole in manager.whole().items()}
    if any(is_sharded(known.get(one, one)) for one in parameters):
        raise InputError(words.NOT_GATHERED)
    before = [manager.settings() for manager in managers]
    try:
        for manager in managers:
            manager.set(_LEAVE_ALONE)
        wanted = [known.get(one, one) for one in parameters]
        yield Gathered(wanted, {known[one]: one for one in parameters if one in known})
    finally:
        for manager, settings in zip(managers, before, strict=True):
            manager.set(settings)


_LEAVE_ALONE = {"reduce_grads": False, "all_reduce_grads": False, "reshard_after_backward": False}


class _Manager(NamedTuple):
    """A module that gathers parameters. Torch has no other way to ask than its own attributes."""

    module: Any

    @property
    def _groups(self) -> list[Any]:
        return list(self.module._get_fsdp_state()._fsdp_param_groups)

    def sharded(self) -> list[Tensor]:
        """Return the parameters that it gathers."""
        return [one.sharded_param for group in self._groups for one in group.fsdp_params]

    def whole(self) -> dict[Tensor, Tensor]:
        """Return what it has gathered."""
        return {
            one.sharded_param: one.unsharded_param for group in self._groups for one in group.fsdp_params
        }

    def settings(self) -> dict[str, bool]:
        """Return what is to be done at the end of backward passes."""
        return {name: getattr(group, name) for group in self._groups for name in _LEAVE_ALONE}

    def set(self, settings: dict[str, bool]) -> None:
        """Set it."""
        for group in self._groups:
            for name, value in settings.items():
                setattr(group, name, value)


def managed() -> list[Tensor]:
    """Return all parameters that modules gather, whichever optimizer they belong to."""
    return [one for manager in _managers() for one in manager.sharded()]


def _managers() -> list[_Manager]:
    kind = _fully_sharded()
    if not kind:
        return []
    from torch.distributed._composable_state import _module_state_mapping

    return [_Manager(one) for one in list(_module_state_mapping) if isinstance(one, kind)]


def _managers_of(parameters: Sequence[Tensor]) -> list[_Manager]:
    """Return the modules that gather parameters, in the order of these: all processes have the same."""
    if not any(map(is_sharded, parameters)):
        return []
    owners = {one: manager for manager in _managers() for one in manager.sharded()}
    return list(dict.fromkeys(owners[one] for one in parameters if one in owners))
