"""A loss that is evaluated again: at other parameters, with the same randomness, leaving no trace."""

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _global_forward_pre_hooks, register_module_forward_pre_hook

from pesky.errors import InputError
from pesky.torch.loss.gathering import gathering_anew, managed
from pesky.torch.loss.graph import edges_below, leaves_below
from pesky.torch.passes.fused import are_same
from pesky.torch.processes import size_of, sum_unless_failed
from pesky.torch.shards import gradient_here, is_sharded, local_of

__all__ = [
    "Evaluation",
    "FirstPass",
    "Manner",
    "RandomState",
    "Unrepeatable",
    "check_closure",
    "first_pass",
    "given_again",
    "gradients_after",
    "gradients_of",
    "is_repeating",
    "kept_gradients",
    "noted_buffers",
    "put_back",
    "random_state",
    "repeating",
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
Gradients = Callable[[Sequence[Tensor]], list[Tensor | None]]


class Unrepeatable(Exception):  # noqa: N818 (says what the loss is)
    """A loss in somebody else's loop cannot be evaluated again, for the reason that is given."""


_repeating: list[object] = []  # one for each evaluation that is going on


@contextmanager
def repeating() -> Iterator[None]:
    """Let `is_repeating` say so."""
    own = object()
    try:
        _repeating.append(own)
        yield
    finally:
        _repeating[:] = [one for one in _repeating if one is not own]


def is_repeating() -> bool:
    """Whether a loss is being evaluated again, which watches of modules take no notice of."""
    return bool(_repeating)


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
    ) -> None:
        """Note what a first pass found."""
        self.is_repeatable = buffers is not None  # whether `again` has the randomness of the first pass
        self.weight = 1.0  # in the sum of a step's losses
        self.is_scaled = False  # whether the weight has a GradScaler's factor in it
        self.is_noted = False  # whether it is of a watched call, not of a closure
        self._closure = closure
        self._state = state
        self._buffers = buffers
        self._manner = manner
        self.loss = float(loss.detach())
        self.mean: float | None = None  # of the losses of all processes that have one like it
        self.rounding = torch.finfo(loss.dtype).eps

    def again(self, keep_buffers: bool = False) -> float:
        """Return the loss at the present parameters.

        With `keep_buffers` the buffers are afterwards as if this had been the only pass.
        """
        with self._in_words():
            return self._again(keep_buffers)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Let errors in a watched call, which nobody asked to be repeated, be a reason to do without."""
        try:
            yield
        except Exception as problem:
            if not self.is_noted or isinstance(problem, Unrepeatable):
                raise
            raise Unrepeatable(f"{type(problem).__name__}: {problem}") from problem

    def _again(self, keep_buffers: bool) -> float:
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
            self.loss, self.mean, self.is_repeatable = self.again(), None, True

    @property
    def has_statistics(self) -> bool:
        """Whether the first pass changed buffers."""
        return any(not torch.equal(*pair) for pair in (self._buffers or {}).items())

    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Return its part in the gradients at the present parameters; None where it has none."""
        with self._in_words():
            found = gradients_of(self._closure, self._state, parameters, self._buffers)
        return [None if one is None else one.mul_(self.weight) for one in found]

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
        with same_randomness(self._state), repeating(), gathering_anew(is_last=True):
            found: Any = self._closure()
        return float(found.detach() if isinstance(found, Tensor) else found)


class FirstPass(NamedTuple):
    """A loss with its graph, and what there was before it."""

    loss: Tensor
    state: RandomState
    buffers: dict[Tensor, Tensor]
    mean: float | None  # of the losses of all processes, if there are several


def first_pass(closure: Closure, check: Callable[[Tensor], None], among: Any) -> FirstPass:
    """Compute a loss that passes a check; all processes have to, if there are several."""
    state, found = random_state(), []

    def compute() -> float:
        loss = closure()
        check(loss)
        found.append(loss)
        return 0.0 if among is None else float(loss.detach()) / size_of(among)

    with torch.enable_grad(), noted_buffers() as buffers, gathering_anew():
        try:
            mean = sum_unless_failed(compute, among)
        except BaseException:
            put_back(buffers)
            raise
    return FirstPass(found[0], state, buffers, None if among is None else mean)


def given_again(closure: Closure, loss: Tensor, will_repeat: bool, manner: Manner) -> Evaluation:
    """Return the evaluation of a loss whose first pass was not ours: the closure sets the randomness."""
    found = Evaluation(closure, loss, random_state(), None, manner)
    if will_repeat:
        found.repeat()
    return found


def gradients_of(
    again: Closure,
    state: RandomState | None,
    parameters: Sequence[Tensor],
    buffers: Mapping[Tensor, Tensor] | None = None,
) -> list[Tensor | None]:
    """Return the gradients of a loss that is evaluated again; None for parameters it does not see.

    `.grad` and buffers are not touched; `buffers` are those that may be, if that is known. Without a
    `state` the randomness is that which comes next, and comes next again afterwards.
    """
    if not parameters:  # which torch refuses; the loss depends on none of them
        return []
    untouched = untouched_buffers() if buffers is None else _kept(buffers)
    with same_randomness(state), untouched, repeating(), torch.enable_grad():
        are_shards = any(map(is_sharded, parameters))
        with gathering_anew() if are_shards else nullcontext():
            loss = again()
        if are_shards or _is_reentrant(loss):
            return _gradients_by_backward(loss, parameters)
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))


@contextmanager
def _kept(buffers: Iterable[Tensor]) -> Iterator[None]:
    kept = {one: one.clone() for one in buffers}
    try:
        yield
    finally:
        put_back(kept)


def _is_reentrant(loss: Tensor) -> bool:
    """Whether parameters hide in a checkpoint, which only `backward()` can reach."""
    return any(node.name() == "CheckpointFunctionBackward" for node, _ in edges_below(loss))


def _gradients_by_backward(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return what a backward pass leaves in `.grad`, which is not changed.

    For parameters that are sharded it is the only way: gradients come together while it runs. It leaves
    them with those of other optimizers, too.
    """
    with kept_gradients([*parameters, *managed(), *leaves_below(loss)]):
        loss.backward()  # type: ignore[no-untyped-call]
        return [gradient_here(one) for one in parameters]


@contextmanager
def kept_gradients(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Let parameters have no gradients meanwhile, and then those that they had."""
    kept = {one: one.grad for one in parameters}
    try:
        for one in kept:
            one.grad = None
        yield
    finally:
        for one, gradient in kept.items():
            one.grad = gradient


@torch.no_grad()
def gradients_after(
    gradients: Gradients,
    copies: Mapping[Tensor, Tensor],
    parameters: Sequence[Tensor],
    move: Callable[[], None],
) -> list[Tensor | None]:
    """Return the gradients where `move` leads; None for parameters that the loss then does not see.

    The parameters have the same bits as before afterwards. Of those that have a copy among `copies` no
    other one is made.
    """
    before = {local_of(one): _copy_of(one, copies) for one in parameters}
    try:
        move()
        return gradients(parameters)
    finally:
        put_back(before)


def _copy_of(parameter: Tensor, copies: Mapping[Tensor, Tensor]) -> Tensor:
    known, here = copies.get(parameter), local_of(parameter)
    is_same = known is not None and are_same([(here.detach(), known)])
    return known if known is not None and is_same else here.clone()
