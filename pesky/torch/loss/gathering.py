"""Modules that gather their parameters from all processes for a pass (`fully_shard`).

They keep what they have gathered as long as they think it is of use. Where parameters have been moved
meanwhile, as a step does between two passes, it is out of date.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_pre_hooks, register_module_forward_pre_hook

__all__ = ["gathering_anew"]

_called: list[list[Any]] = []


def _forget(module: nn.Module, inputs: Any) -> None:
    if not torch.compiler.is_compiling() and isinstance(module, _fully_sharded()):
        module.reshard()  # type: ignore[operator]
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
    if not _fully_sharded():
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
