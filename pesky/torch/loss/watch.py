"""Watched modules: what happens in somebody else's loop, seen from inside of its forward passes.

A call of a watched model is noted, so that it can be done again elsewhere, and its output marked. Where
a loss comes out of a watched module, a tap reports when the backward pass arrives at it.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pesky.errors import InputError
from pesky.torch.loss.again import Evaluation, Manner, is_repeating
from pesky.torch.loss.backward import Tap
from pesky.torch.loss.calls import Call, mark_outputs

__all__ = ["Watch", "Watcher", "check_module", "idle", "repeated_loss"]


class Watcher:
    """The hooks on one module.

    They do not keep the optimizer alive, and copies of the module (pickled ones too) are not watched.
    """

    def __init__(self, optimizer: Any, module: torch.nn.Module, scaler: Any, *, is_model: bool) -> None:
        """Watch for this optimizer; `scaler`, if any, tells by how much the loss is scaled.

        A model's mode chooses what is visible; another module is only a part of the loss.
        """
        self.optimizer: Callable[[], Any] = weakref.ref(optimizer)
        self.module: Callable[[], torch.nn.Module | None] = weakref.ref(module)
        self.name = type(module).__name__
        self.is_model = is_model
        self.taps_loss = True
        self.has_seen_loss = False
        self._scaler = scaler
        self._open: list[Call | None] = []  # calls that have not ended
        self._handles = [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after, always_call=True),
        ]
        if is_model:
            registered = module.register_state_dict_pre_hook(self._show)  # type: ignore[no-untyped-call]
            self._handles.append(registered)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the optimizer behind, and all else."""
        return {"optimizer": _nothing, "_open": []}

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def is_watching(self) -> bool:
        """Whether there still are hooks."""
        return bool(self._handles)

    # --- Hooks -----------------------------------------------------------------------------------------

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        optimizer = self.optimizer()
        if optimizer is None:
            self._take_off(module)
        elif not is_repeating():
            optimizer._show_pass(self, module.training)
            is_noted = torch.is_grad_enabled() and optimizer._notes_calls()
            self._open.append(Call(module, args, kwargs, optimizer._parameters()) if is_noted else None)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> Any:
        """Return the output with its loss tapped, or None to leave it alone."""
        optimizer = self.optimizer()
        if optimizer is None or is_repeating() or not self._open:
            return None
        call = self._open.pop()
        if output is None or not torch.is_grad_enabled():  # None is what is left of an exception
            return None
        if call is not None:
            call.end()
        place, loss = _loss_in(output) if self.taps_loss else (None, None)
        found = output
        if loss is not None:
            self.has_seen_loss = True
            report = partial(self._report, call, place)
            loss = Tap.apply(loss, report)  # type: ignore[no-untyped-call]
            found = _replaced(output, place, loss)
        if call is not None:
            mark_outputs(call, found, loss, keeps=self.taps_loss)
        return None if loss is None else found

    def _show(self, module: torch.nn.Module, *_: Any) -> None:
        """Let the module's state be that which its mode is to show."""
        optimizer = self.optimizer()
        if optimizer is not None and not is_repeating():
            optimizer._show(module.training)

    def _report(
        self, call: Call | None, place: str | int | None, loss: Tensor, upstream: Tensor
    ) -> None:
        optimizer = self.optimizer()
        if optimizer is not None:
            optimizer._watched_backward(call, place, loss, upstream, self._scaler)

    def _take_off(self, module: torch.nn.Module) -> None:
        """Leave a copy, or a module whose optimizer is gone."""
        for hooks in (
            module._forward_pre_hooks,
            module._forward_hooks,
            module._state_dict_pre_hooks,
            module._forward_pre_hooks_with_kwargs,
            module._forward_hooks_always_called,
        ):
            own = [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is self]
            for key in own:
                del hooks[key]


class Watch:
    """What `VSGD.watch` returns: a model, a loss or both are watched until `remove`."""

    def __init__(
        self, optimizer: Any, module: torch.nn.Module, loss: torch.nn.Module | None, scaler: Any
    ) -> None:
        """Watch them."""
        is_model = any(True for _ in _unwrapped(module).parameters())
        self.watchers = [Watcher(optimizer, _unwrapped(module), scaler, is_model=is_model)]
        if loss is not None:
            self.watchers[0].taps_loss = False
            self.watchers.append(Watcher(optimizer, _unwrapped(loss), scaler, is_model=False))

    def remove(self) -> None:
        """End it."""
        for one in self.watchers:
            one.remove()

    def __enter__(self) -> "Watch":
        """Watch within a `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it with the `with`."""
        self.remove()

    def shares_with(self, other: "Watch") -> bool:
        """Whether both watch the same module, whose losses would then be seen twice."""
        own = [one.module() for one in self.watchers]
        return any(one.module() is mine for one in other.watchers for mine in own)

    def see_loss(self) -> None:
        """Note that a loss was computed from what is watched."""
        for one in self.watchers:
            one.has_seen_loss = True

    @property
    def is_watching(self) -> bool:
        """Whether it has not been ended."""
        return any(one.is_watching for one in self.watchers)

    @property
    def is_of_model(self) -> bool:
        """Whether a model is watched, and still is."""
        return any(one.is_model and one.is_watching for one in self.watchers)


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return what a wrapper for many processes calls, which can be called again by each for itself."""
    while isinstance(module, DistributedDataParallel | DataParallel):
        module = module.module
    return module


def check_module(module: object) -> None:
    """Refuse what has no forward pass to watch."""
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"watch needs a torch.nn.Module that computes the loss; got {module!r}: wrap a function "
            "in a module, or use optimizer.backward(loss) in place of loss.backward()"
        )


def idle(watches: list[Watch]) -> list[str]:
    """Return the names of modules that are watched and have had no loss to see."""
    return [
        one.name
        for watch in watches
        for one in watch.watchers
        if one.is_watching and one.taps_loss and not one.has_seen_loss
    ]


def repeated_loss(
    call: Call, place: str | int | None, loss: Tensor, upstream: Tensor, manner: Manner
) -> Evaluation:
    """Return the evaluation of a loss at which a backward pass has arrived."""
    compute = partial(call.compute, partial(_taken, place))
    found = Evaluation(compute, loss, call.conditions.randomness, call.buffers(), manner)
    found.weight, found.is_scaled, found.is_noted = float(upstream), True, True
    return found


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


def _taken(place: str | int | None, output: Any) -> Any:
    """Return the loss of another output of the same kind."""
    if place is None:
        return output
    return output.loss if place == ".loss" else output[place]


def _replaced(output: Any, place: str | int | None, loss: Tensor) -> Any:
    if place is None:
        return loss
    if place == "loss":
        output["loss"] = loss
    elif place == ".loss":
        if isinstance(output, tuple):
            return output._replace(loss=loss)  # type: ignore[attr-defined]
        output.loss = loss
    elif isinstance(output, list):
        output[0] = loss
    else:
        return (loss, *output[1:])
    return output
