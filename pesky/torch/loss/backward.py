"""Backward passes that measure curvature on their way, and what they leave for the step.

They are ours, or those of somebody else's loop. Scaled losses (torch.amp.GradScaler): gradients and
curvatures carry the factor, steps must not.
"""

import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pesky.errors import InputError
from pesky.torch.curvature.choice import CurvatureSource
from pesky.torch.curvature.sources import Values, finite_difference
from pesky.torch.loss.again import Evaluation, RandomState, gradients_after, gradients_of
from pesky.torch.passes.reading import Expected, Reading

__all__ = ["Backward", "Pending", "Tap", "Wanted", "check_loss", "scale_of", "unscaling"]

_FREED = "backward through the graph a second time"  # in torch's words


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


class Wanted(NamedTuple):
    """What a step wants of a backward pass."""

    is_due: bool  # whether it needs curvature
    parameters: list[Tensor]
    seed: int  # of sources that draw random numbers
    known_curved: bool  # whether bbprop has found curvature in earlier losses
    for_levels: bool  # whether levels of tensors are all that is wanted
    copies: dict[Tensor, Tensor]  # of parameters, if they have not been changed from outside


class Pending:
    """What backward passes have left since the last step: curvatures are summed up, as gradients are."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.clear()

    def clear(self) -> None:
        """Forget it, as `zero_grad` forgets gradients."""
        self.values: Values = {}
        self.unmeasured = False  # whether there was a backward pass whose curvature nothing could tell
        self.loss = 0.0  # of all such passes
        self.reading = Reading()  # of what the host wants to know of this step
        self._shown: list[tuple[Expected, float]] = []  # losses of all passes, and their scales
        self.loss_scale: float | None = None  # by which losses probably were multiplied under AMP
        self.passes = 0
        self.spared = False  # whether there was a backward pass whose curvature was not wanted
        self.evaluations: list[Evaluation] = []  # for the robust dialect
        # Passes that were ours, and whose buffers a skipped step forgets.
        self.first_passes: list[Evaluation] = []

    def add(self, values: Values, factor: float = 1.0) -> None:
        """Take in the curvature of one backward pass."""
        self.passes += 1
        for parameter, value in values.items():
            value = value.detach()
            if value.dtype in (torch.float16, torch.bfloat16):
                value = value.float()
            if factor != 1:
                value = value * factor
            before = self.values.get(parameter)
            self.values[parameter] = value if before is None else before + value

    def note_loss(self, loss: Tensor, scale: float | None) -> None:
        """Note the loss of a backward pass, which may have been multiplied for AMP."""
        number = loss.detach().reshape(())
        if not number.is_cpu:
            number = number.clone()  # some loops change it in place, before it is read
        self._shown.append((self.reading.expect([number]), scale or 1.0))

    @property
    def shown_loss(self) -> float | None:
        """The loss of all passes, as a user knows it; None without any."""
        if not self._shown:
            return None
        return sum(expected.get()[0] / scale for expected, scale in self._shown)

    @property
    def is_finite(self) -> bool:
        """Whether all losses are, so that there is something to measure."""
        return self.shown_loss is None or isfinite(self.shown_loss)

    def add_loss(self, loss: Tensor, factor: float = 1.0) -> None:
        """Take in a loss without curvature; see `polyak_curvature`."""
        self.passes += 1
        self.unmeasured = True
        self.loss += abs(float(loss.detach())) * factor


class Backward:
    """Measures curvature around backward passes, and leaves it in `pending`."""

    def __init__(self, source: CurvatureSource, pending: Pending) -> None:
        """Begin without any pass."""
        self._source = source
        self._pending = pending
        self.is_running = False  # so that a loss which is watched, too, is not measured twice

    def run(
        self,
        loss: Tensor,
        wanted: Wanted,
        again: Callable[[], Tensor] | None,
        state: RandomState | None = None,
        scale: float | None = None,
    ) -> str | None:
        """Do `(scale loss).backward()`; return the source of its curvature, None if none was wanted.

        `again` computes the loss once more, after the random state `state`; None: that is not known.
        """
        try:
            return self._run(loss, wanted, again, state, scale)
        except RuntimeError as error:
            if _FREED not in str(error):
                raise
            raise InputError(
                "loss must not have been through backward() before; got one whose graph is freed: call "
                "optimizer.backward(loss) in place of loss.backward()"
            ) from error

    def _run(
        self,
        loss: Tensor,
        wanted: Wanted,
        again: Callable[[], Tensor] | None,
        state: RandomState | None,
        scale: float | None,
    ) -> str | None:
        found_scale = _loss_scale_of(loss) if scale is None else scale
        self._pending.note_loss(loss, found_scale if scale is None else None)
        differentiate = partial(self._differentiate, loss if scale is None else loss * scale)
        if not wanted.is_due or not self._pending.is_finite:
            self._pending.spared = True
            differentiate()
            return None
        self._pending.loss_scale = found_scale
        with self._running():  # what is watched may be a part of this loss
            source, values = self._source.before_backward(
                _untapped(loss),
                wanted.parameters,
                can_repeat=again is not None,
                seed=wanted.seed,
                known_curved=wanted.known_curved,
                for_levels=wanted.for_levels,
            )
        factor = 1.0 if scale is None else scale
        if source == "finite-difference":
            assert again is not None
            here = _gradients_left_by(differentiate, wanted.parameters)
            if factor != 1:
                here = {one: gradient / factor for one, gradient in here.items()}
            after = partial(gradients_after, again, state, wanted.copies)
            with self._running():  # the loss may be watched, too
                if state is None:  # the closure may draw other dropout masks than this loss had
                    here = _repeated(again, here)
                values = finite_difference(after, here, wanted.seed)
        else:
            differentiate()
        self._leave(values, loss, factor)
        return source

    def run_inside(self, loss: Tensor, wanted: Wanted, upstream: Tensor, scaler: Any) -> str | None:
        """Measure inside a running backward pass, which has just come to the loss."""
        self._pending.note_loss(loss, None)
        if not wanted.is_due or not self._pending.is_finite:
            self._pending.spared = True
            return None
        with self._running():
            source, values = self._source.before_backward(
                loss,
                wanted.parameters,
                can_repeat=False,
                seed=wanted.seed,
                known_curved=wanted.known_curved,
                for_levels=wanted.for_levels,
                upstream=upstream,
            )
        if scaler is not None and scaler.is_enabled():
            self._pending.loss_scale = scaler.get_scale()
        self._leave(values, loss, 1.0 if values is not None else abs(float(upstream)))
        return source

    def _differentiate(self, loss: Tensor) -> None:
        with self._running():
            loss.backward()  # type: ignore[no-untyped-call]

    @contextmanager
    def _running(self) -> Iterator[None]:
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False

    def _leave(self, values: Values | None, loss: Tensor, factor: float) -> None:
        if values is None:
            self._pending.add_loss(loss, factor)
        else:
            self._pending.add(values, factor)


class Tap(torch.autograd.Function):
    """Pass a loss through, and report when the backward pass arrives at it.

    A hook on the loss would have to hold the loss, which holds the hook: the graph would never be
    freed. A node that saves its input is no such circle.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, report: Callable[[Tensor, Tensor], None]) -> Tensor:
        """Save the loss, which `report` gets with the gradient that arrives at it."""
        ctx.save_for_backward(loss)
        ctx.report = report
        return loss.clone()  # some loops change it in place

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Report, and pass the gradient on."""
        ctx.report(ctx.saved_tensors[0], upstream)
        return upstream, None


def _untapped(loss: Tensor) -> Tensor:
    """Return the loss as it was before it was tapped."""
    while loss.grad_fn is not None and loss.grad_fn.name() == "TapBackward":
        (loss,) = loss.grad_fn.saved_tensors  # type: ignore[attr-defined]
    return loss


def _repeated(again: Callable[[], Tensor], gradients: Values) -> Values:
    found = gradients_of(again, None, list(gradients))
    pairs = zip(gradients, found, strict=True)
    return {one: torch.zeros_like(one) if gradient is None else gradient for one, gradient in pairs}


def _gradients_left_by(differentiate: Callable[[], None], parameters: Sequence[Tensor]) -> Values:
    """Run a backward pass; return what it added to each parameter's `.grad`, which may be all of it."""
    before = {one: one.grad.clone() for one in parameters if one.grad is not None}
    differentiate()
    return {
        one: one.grad.detach() - before.pop(one) if one in before else one.grad.detach()
        for one in parameters
        if one.grad is not None
    }


# --- Scaled losses -------------------------------------------------------------------------------------


def scale_of(scaler: Any) -> float | None:
    """Return what a GradScaler multiplies losses with, if there is one and it does."""
    if scaler is None or not scaler.is_enabled():
        return None
    return float(scaler.scale(torch.ones(())))


def _loss_scale_of(loss: Tensor) -> float | None:
    """Return the constant that a loss was multiplied with at last, as GradScaler.scale does."""
    node = loss.grad_fn
    if node is None or node.name() != "MulBackward0" or len(node.next_functions) != 2:
        return None
    if node.next_functions[1][0] is not None:  # the second factor has a gradient: no constant
        return None
    factor = getattr(node, "_saved_other", None)
    return float(factor) if isinstance(factor, Tensor) and factor.dim() == 0 else None


def unscaling(optimizer: Any, pending: Pending) -> tuple[float, float] | None:
    """Return what to multiply gradients and curvatures with; None: GradScaler wants the step skipped.

    Inside `scaler.step(optimizer)` the scaler leaves two attributes with the optimizer. If there is
    no scale among them, `scaler.unscale_` has divided the gradients already, but not the curvatures.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return 1.0, 1.0
    if float(found_inf) > 0:
        return None
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        return 1 / float(scale), 1 / float(scale)
    if pending.passes == 0:
        return 1.0, 1.0
    if pending.loss_scale is None:
        raise InputError(
            "scaler.unscale_(optimizer) divided the gradients, but by how much the curvature must be "
            "divided is not known: use optimizer.watch(module, scaler=scaler), "
            "optimizer.backward(loss, scaler=scaler) or optimizer.backward(scaler.scale(loss))"
        )
    return 1.0, 1 / pending.loss_scale
