"""An optimizer that measures curvature: in its own backward pass, or inside somebody else's."""

import reprlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pesky.errors import InputError
from pesky.torch.again import RandomState
from pesky.torch.curvature import Mode
from pesky.torch.loss_scale import loss_scale_of
from pesky.torch.measuring import Measuring, gradients_of
from pesky.torch.pending import Pending
from pesky.torch.sources import finite_difference
from pesky.torch.watching import Watched, Watcher, is_registered, untapped

__all__ = ["MeasuringOptimizer", "check_closure", "check_loss", "scale_of"]

_FREED = "backward through the graph a second time"  # in torch's words


class MeasuringOptimizer(Optimizer):
    """The ways to call it; what a step does with gradients and curvatures is for subclasses."""

    counters: dict[str, Any]  # "steps" and "sources" at least; saved with the state
    _measuring: Measuring
    _pending: Pending
    _watched: list[Watched]
    _measuring_now = False

    @abstractmethod
    def _is_due(self) -> bool:
        """Whether the next step needs curvature."""

    def backward(
        self, loss: Tensor, *, again: Callable[[], Tensor] | None = None, scaler: Any = None
    ) -> None:
        """Measure the curvature of the loss, then do `loss.backward()`.

        With a `scaler` the gradient is that of `scaler.scale(loss)`; give the loss itself. `again`
        computes the loss once more, for sources of curvature that need it.
        """
        check_loss(loss)
        self._backward(loss, again, None, scale_of(scaler))

    def watch(self, module: torch.nn.Module, *, scaler: Any = None) -> RemovableHandle:
        """Measure curvature inside every `loss.backward()`, for a loss that this module computes.

        The module is a loss, or a model whose output is or holds the loss (`.loss`, `["loss"]`, first).
        Only what the module computes is seen: penalties added to its loss afterwards are not.
        Give the GradScaler if `scaler.unscale_` is called. Returns a handle with `remove()`.
        """
        if not isinstance(module, torch.nn.Module):
            raise InputError(
                f"watch needs a torch.nn.Module that computes the loss; got {module!r}: wrap a function "
                "in a module, or use optimizer.backward(loss) in place of loss.backward()"
            )
        watcher = Watcher(self, scaler)
        handle = module.register_forward_hook(watcher)
        self._watched.append(Watched(type(module).__name__, watcher, handle))
        return handle

    def _idle_watched(self) -> list[str]:
        """Return the names of modules that are watched and have had no loss to see."""
        return [
            name
            for name, watcher, handle in self._watched
            if is_registered(handle) and not watcher.has_seen_loss
        ]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, and curvatures with them."""
        super().zero_grad(set_to_none)
        self._pending.clear()

    def _parameters(self) -> list[Tensor]:
        return [one for group in self.param_groups for one in group["params"] if one.requires_grad]

    def _backward(
        self,
        loss: Tensor,
        again: Callable[[], Tensor] | None,
        state: RandomState | None,
        scale: float | None = None,
    ) -> None:
        try:
            self._measured_backward(loss, again, state, scale)
        except RuntimeError as error:
            if _FREED not in str(error):
                raise
            raise InputError(
                "loss must not have been through backward() before; got one whose graph is freed: call "
                "optimizer.backward(loss) in place of loss.backward()"
            ) from error

    def _measured_backward(
        self,
        loss: Tensor,
        again: Callable[[], Tensor] | None,
        state: RandomState | None,
        scale: float | None = None,
    ) -> None:
        def backward() -> None:
            self._measuring_now = True  # so a watched loss is not measured twice
            try:
                (loss if scale is None else loss * scale).backward()  # type: ignore[no-untyped-call]
            finally:
                self._measuring_now = False

        found_scale = loss_scale_of(loss) if scale is None else scale
        self._pending.note_loss(loss, found_scale if scale is None else None)
        if not self._is_due() or not self._pending.is_finite:
            self._pending.spared = True
            backward()
            return
        parameters = self._parameters()
        self._pending.loss_scale = found_scale
        source, values = self._measuring.before_backward(
            untapped(loss),
            parameters,
            can_repeat=again is not None,
            seed=self.counters["steps"],
            known_curved=self._is_known_curved(),
            mode=self._mode(),
        )
        factor = 1.0 if scale is None else scale
        if source == "finite-difference":
            assert again is not None
            gradients = gradients_of(backward, parameters)
            here = {one: gradient / factor for one, gradient in gradients.items()}
            values = finite_difference(again, here, state, seed=self.counters["steps"])
        else:
            backward()
        self._take(source, values, loss, factor)

    def _watched_backward(self, loss: Tensor, upstream: Tensor, scaler: Any) -> None:
        """Measure inside a running backward pass, which has just come to the loss."""
        if self._measuring_now:
            return
        self._pending.note_loss(loss, None)
        if not self._is_due() or not self._pending.is_finite:
            self._pending.spared = True
            return
        source, values = self._measuring.before_backward(
            loss,
            self._parameters(),
            can_repeat=False,
            seed=self.counters["steps"],
            known_curved=self._is_known_curved(),
            mode=self._mode(),
            upstream=upstream,
        )
        if scaler is not None and scaler.is_enabled():
            self._pending.loss_scale = scaler.get_scale()
        self._take(source, values, loss, 1.0 if values is not None else abs(float(upstream)))

    def _mode(self) -> Mode:
        """Return bbprop's."""
        return "gauss-newton"

    def _is_known_curved(self) -> bool:
        return "bbprop" in self.counters["sources"]

    def _take(self, source: str, values: Any, loss: Tensor, factor: float) -> None:
        sources = self.counters["sources"]
        sources[source] = sources.get(source, 0) + 1
        if values is None:
            self._pending.add_loss(loss, factor)
        else:
            self._pending.add(values, factor)


def scale_of(scaler: Any) -> float | None:
    """Return what a GradScaler multiplies losses with, if there is one and it does."""
    if scaler is None or not scaler.is_enabled():
        return None
    return float(scaler.scale(torch.ones(())))


def check_loss(loss: object) -> None:
    """Refuse what has no gradient."""
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad and not loss.is_complex():
        return
    if not isinstance(loss, Tensor):
        shown = f"{reprlib.repr(loss)}: give the tensor itself, not its .item() or a list"
    elif loss.is_complex():
        shown = f"a complex tensor: take its real part or its absolute value ({loss.dtype})"
    elif loss.numel() != 1:
        shown = f"a tensor of shape {tuple(loss.shape)}: take its mean"
    else:
        shown = "a tensor without grad: it is detached or constant, or all its parameters are frozen"
    raise InputError(f"loss must be a tensor of one number that depends on parameters; got {shown}")


def check_closure(closure: object, name: str = "closure") -> None:
    """Refuse what cannot be called, such as the loss itself."""
    if isinstance(closure, Tensor):
        raise InputError(
            f"{name} must be a function that computes the loss; got a tensor: "
            "optimizer.minimize(lambda: loss_fn(model(x), y)), or optimizer.backward(loss) and "
            "optimizer.step()"
        )
    if not callable(closure):
        raise InputError(
            f"{name} must be a function that computes the loss; got {reprlib.repr(closure)}"
        )
