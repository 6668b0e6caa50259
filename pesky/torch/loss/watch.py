"""Curvature inside an ordinary `loss.backward()`, for training loops that are somebody else's."""

import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from pesky.errors import InputError
from pesky.torch.loss.backward import Tap

__all__ = ["Watched", "Watcher", "check_module", "is_registered"]


class Watcher:
    """A forward hook that puts a tap on the loss in a module's output.

    It does not keep the optimizer alive, and copies of the module (pickled ones too) are not watched.
    """

    def __init__(self, optimizer: Any, scaler: Any) -> None:
        """Watch for this optimizer; `scaler`, if any, tells by how much the loss is scaled."""
        self._optimizer: Callable[[], Any] = weakref.ref(optimizer)
        self._scaler = scaler
        self._said = False
        self.has_seen_loss = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave the optimizer behind."""
        return {"_optimizer": _nothing, "_scaler": None, "_said": True, "has_seen_loss": True}

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        """Return the output with its loss tapped, or None to leave it alone."""
        if self._optimizer() is None or not torch.is_grad_enabled():
            return None
        name, loss = _loss_in(output)
        if loss is None:
            if not self._said and module.training:
                self._said = True
                warnings.warn(
                    f"watch: the output of {type(module).__name__} holds no loss (a tensor of one entry "
                    "that requires grad, as itself, as .loss, ['loss'] or first entry); "
                    "watch the loss module instead",
                    stacklevel=3,
                )
            return None
        self.has_seen_loss = True
        return _replaced(output, name, Tap.apply(loss, self._report))  # type: ignore[no-untyped-call]

    def _report(self, loss: Tensor, upstream: Tensor) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer._watched_backward(loss, upstream, self._scaler)


def check_module(module: object) -> None:
    """Refuse what has no forward pass to watch."""
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"watch needs a torch.nn.Module that computes the loss; got {module!r}: wrap a function "
            "in a module, or use optimizer.backward(loss) in place of loss.backward()"
        )


class Watched(NamedTuple):
    """A module that is watched, by the name of its class."""

    name: str
    watcher: Watcher
    handle: RemovableHandle


def is_registered(handle: RemovableHandle) -> bool:
    """Whether a hook is still there."""
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks


def _nothing() -> None:
    return None


def _loss_in(output: Any) -> tuple[str | int | None, Tensor | None]:
    """Find the loss, and where it is."""
    if isinstance(output, Tensor):
        return None, output if _is_loss(output) else None
    if isinstance(output, dict) and _is_loss(output.get("loss")):
        return "loss", output["loss"]
    if _is_loss(getattr(output, "loss", None)):
        return ".loss", output.loss
    if isinstance(output, tuple | list) and output and _is_loss(output[0]):
        return 0, output[0]
    return None, None


def _is_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad


def _replaced(output: Any, name: str | int | None, loss: Tensor) -> Any:
    if name is None:
        return loss
    if name == "loss":
        output["loss"] = loss
    elif name == ".loss":
        if isinstance(output, tuple):
            return output._replace(loss=loss)  # type: ignore[attr-defined]
        output.loss = loss
    elif isinstance(output, list):
        output[0] = loss
    else:
        return (loss, *output[1:])
    return output
