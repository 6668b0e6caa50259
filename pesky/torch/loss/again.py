"""A loss that is evaluated again: at other parameters, with the same randomness, leaving no trace."""

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import _global_forward_pre_hooks, register_module_forward_pre_hook

from pesky.errors import InputError
from pesky.torch.loss.processes import mean_of
from pesky.torch.passes.fused import are_same
from pesky.torch.passes.grouped import expected_squares
from pesky.torch.passes.reading import Expected, Reading
from pesky.torch.settings import l2_of

__all__ = [
    "Evaluation",
    "Losses",
    "Manner",
    "RandomState",
    "check_closure",
    "first_pass",
    "given_again",
    "gradients_after",
    "gradients_of",
    "put_back",
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
    is_compiled = "_orig_mod" in module._modules
    if not (module._buffers or is_compiled):  # most modules, many times a step
        return
    if torch.compiler.is_compiling():  # what is inside a compiled model is noted when that is called
        return
    for buffer in module.buffers(recurse=is_compiled):
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
    """Give buffers, or parameters, the values that were noted."""
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


Closure = Callable[[], Tensor]

_SAME = 0.01  # of the spread of losses: what differs by less is the same loss, computed in another way
_NEEDS_GRAPH = "does not require grad"  # in torch's words where a closure differentiates without a graph


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


@dataclass
class Manner:
    """How an optimizer's losses are evaluated again: with a graph if closures differentiate."""

    with_graph: bool = False


class Evaluation:
    """The loss of one batch; `buffers`, as they were before its first pass, are None if not known."""

    def __init__(
        self,
        closure: Closure,
        loss: Tensor,
        state: RandomState,
        buffers: dict[Tensor, Tensor] | None,
        manner: Manner,
        reading: Reading,
    ) -> None:
        """Note what a first pass found; its loss is read together with what else is wanted."""
        self.is_repeatable = buffers is not None  # whether `again` has the randomness of the first pass
        self._closure = closure
        self._state = state
        self._buffers = buffers
        self._manner = manner
        self._first = reading.expect([loss.detach().reshape(())])
        self._repeated: float | None = None
        self.rounding = torch.finfo(loss.dtype).eps

    @property
    def loss(self) -> float:
        """The loss of the first pass, or of one that has the randomness of later ones."""
        return self._first.get()[0] if self._repeated is None else self._repeated

    def again(self, keep_buffers: bool = False) -> float:
        """Return the loss at the present parameters.

        With `keep_buffers` the buffers are afterwards as if this had been the only pass.
        """
        if self._buffers is None:
            with untouched_buffers():
                return self._loss()
        after = {buffer: buffer.clone() for buffer in self._buffers}
        put_back(self._buffers)
        is_done = False
        try:
            loss = self._loss()
            is_done = True
            return loss
        finally:
            if not (keep_buffers and is_done):
                put_back(after)

    def record_graph(self) -> bool:
        """Let this and later evaluations have a graph; return whether they had none."""
        had, self._manner.with_graph = self._manner.with_graph, True
        return not had

    def repeat(self) -> None:
        """Make sure that the loss has the randomness of later ones, such as dropout masks."""
        if not self.is_repeatable:
            self._repeated, self.is_repeatable = self.again(), True

    @property
    def has_statistics(self) -> bool:
        """Whether the first pass changed buffers."""
        return any(not torch.equal(*pair) for pair in (self._buffers or {}).items())

    def forget_buffers(self) -> None:
        """Undo what the first pass did to buffers."""
        put_back(self._buffers or {})

    def _loss(self) -> float:
        if not self._manner.with_graph:
            try:
                with torch.no_grad():
                    return self._value()
            except RuntimeError as error:
                if _NEEDS_GRAPH not in str(error):
                    raise
            self._manner.with_graph = True
            put_back(self._buffers or {})
        with torch.enable_grad():
            return self._value()

    def _value(self) -> float:
        with same_randomness(self._state):
            found: Any = self._closure()
        return float(found.detach() if isinstance(found, Tensor) else found)


class Losses:
    """The losses of this step's batches, in sum and with the L2 penalty, at any parameters."""

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        groups: Sequence[dict[str, Any]],
        among: Any,
        reading: Reading,
    ) -> None:
        """Compute the one at the present parameters; `among`: processes that have batches, or None."""
        self._evaluations = evaluations
        self._among = among
        self._decayed = [(l2_of(group), group["params"]) for group in groups]
        self.rounding = max(one.rounding for one in evaluations)
        self._penalty_at_first = self._expected_penalty(reading)
        self._first: float | None = None

    @property
    def first(self) -> float:
        """The loss at the present parameters, those of the first passes."""
        if self._first is None:
            losses = [one.loss for one in self._evaluations]
            self._first = self._mean(sum(losses)) + _sum_of(self._penalty_at_first)
        return self._first

    def repeat_first(self) -> None:
        """Make sure that the loss at the present parameters has the randomness of later ones."""
        for one in self._evaluations:
            one.repeat()
        self._first = None

    def repeats(self, spread: float) -> bool:
        """Whether the loss at the present parameters, where the first one was, is the same again.

        A loss that is not, such as one of a batch that the closure draws itself, cannot be compared with
        itself elsewhere. Rounding may differ, as other kernels run where no graph is recorded, and a
        closure may do other things then: if need be, it is given one.
        """
        if self._is_first(self.again(), spread):
            return True
        return self._record_graphs() and self._is_first(self.again(), spread)

    def _is_first(self, loss: float, spread: float) -> bool:
        rounding = sqrt(self.rounding) * max(abs(loss), abs(self.first))
        return abs(loss - self.first) <= max(rounding, _SAME * spread)

    def _record_graphs(self) -> bool:
        """Let all evaluations have graphs from now on; False if they had."""
        changed = [one.record_graph() for one in self._evaluations]
        return True in changed

    def again(self, keep_buffers: bool = False) -> float:
        """Evaluate at the present parameters."""
        total = self._mean(sum([one.again(keep_buffers) for one in self._evaluations]))
        return total + _sum_of(self._expected_penalty(Reading()))

    def _mean(self, total: float) -> float:
        return total if self._among is None else mean_of(total, self._among)

    def _expected_penalty(self, reading: Reading) -> list[tuple[float, Expected]]:
        """Return what the L2 penalty is the sum of: factors, and sums of squares on their way."""
        return [
            (decay / 2, squares)
            for decay, parameters in self._decayed
            if decay
            for squares in expected_squares(reading, parameters)
        ]


def _sum_of(penalty: Sequence[tuple[float, Expected]]) -> float:
    return sum(factor * square for factor, squares in penalty for square in squares.get())


def first_pass(closure: Closure) -> tuple[Tensor, RandomState, dict[Tensor, Tensor]]:
    """Compute a loss with its graph; return it with random state and buffers as they were before."""
    state = random_state()
    with torch.enable_grad(), noted_buffers() as buffers:
        try:
            return closure(), state, buffers
        except BaseException:
            put_back(buffers)
            raise


def given_again(
    closure: Closure, loss: Tensor, will_repeat: bool, manner: Manner, reading: Reading
) -> Evaluation:
    """Return the evaluation of a loss whose first pass was not ours: the closure sets the randomness."""
    found = Evaluation(closure, loss, random_state(), None, manner, reading)
    if will_repeat:
        found.repeat()
    return found


def gradients_of(
    again: Closure, state: RandomState | None, parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients of a loss that is evaluated again; None for parameters it does not see.

    `.grad` and buffers are not touched. Without a `state` the randomness is that which comes next, and
    comes next again afterwards.
    """
    if not parameters:  # which torch refuses; the loss depends on none of them
        return []
    with same_randomness(state), untouched_buffers(), torch.enable_grad():
        return list(torch.autograd.grad(again(), parameters, allow_unused=True))


@torch.no_grad()
def gradients_after(
    again: Closure,
    state: RandomState | None,
    copies: Mapping[Tensor, Tensor],
    parameters: Sequence[Tensor],
    move: Callable[[], None],
) -> list[Tensor | None]:
    """Return the gradients where `move` leads; None for parameters that the loss then does not see.

    The parameters have the same bits as before afterwards. Of those that have a copy among `copies` no
    other one is made.
    """
    before = {one: _copy_of(one, copies) for one in parameters}
    try:
        move()
        return gradients_of(again, state, parameters)
    finally:
        put_back(before)


def _copy_of(parameter: Tensor, copies: Mapping[Tensor, Tensor]) -> Tensor:
    known = copies.get(parameter)
    is_same = known is not None and are_same([(parameter.detach(), known)])
    return known if known is not None and is_same else parameter.clone()
