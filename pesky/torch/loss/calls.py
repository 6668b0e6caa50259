"""Calls of watched modules: what it takes to do one again, under the conditions that it had.

A call holds its inputs, and is held by the graph of what it computed: the nodes of its outputs carry a
mark, so that whoever has a loss finds the calls that it came from, and a graph that is let go takes its
calls along.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pesky.torch.loss.again import RandomState, Unrepeatable, random_state, same_randomness
from pesky.torch.loss.graph import edges_below, is_leaf

__all__ = ["Call", "Mark", "buffers_before", "mark_outputs", "marks_below", "marks_on"]

_KEY = "pesky"  # of marks in the metadata of autograd's nodes
_VIEWS = (
    "Alias",
    "AsStrided",
    "Expand",
    "Permute",
    "ReshapeAlias",
    "Select",
    "Slice",
    "Squeeze",
    "T",
    "Transpose",
    "Unsqueeze",
    "UnsafeView",
    "View",
)


class Mark(NamedTuple):
    """What a node knows of the output that it computed."""

    call: "Call"
    place: int  # among the leaves of the call's output
    storage: int
    version: int
    value: Tensor | None  # the output itself, without its graph, if that may be needed


class Borrowed(NamedTuple):
    """An input that another call computed, or a view of it."""

    call: "Call"
    place: int
    view: tuple[Any, ...] | None  # size, strides and offset

    def of(self, done: "dict[Call, list[Any]]") -> Any:
        """Return it as the repeated call computes it."""
        found = self.call.repeated(done)[self.place]
        return found if self.view is None else found.as_strided(*self.view)


class Conditions:
    """What a forward pass depends on apart from its inputs."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Note it as it is now."""
        self.randomness: RandomState = random_state()
        self.buffers: dict[Tensor, Tensor] = {}
        self._flags: list[tuple[torch.nn.Module, bool]] = []
        for one in module.modules():
            self._flags.append((one, one.training))
            for buffer in one._buffers.values():
                if buffer is not None:
                    self.buffers[buffer] = buffer.detach().clone()
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        self._autocasts = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in devices
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Let them be as they were, buffers apart."""
        changed = [(one, one.training) for one, flag in self._flags if one.training != flag]
        with ExitStack() as stack, same_randomness(self.randomness):
            for device, enabled, dtype in self._autocasts:  # what is cached is of other parameters
                stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
            try:
                for one, present in changed:
                    one.training = not present
                yield
            finally:
                for one, present in changed:
                    one.training = present


class Call:
    """A call of a module, with all that it takes to do it again."""

    def __init__(
        self, module: torch.nn.Module, args: Any, kwargs: Any, parameters: Sequence[Tensor]
    ) -> None:
        """Note inputs and conditions, before the call; `parameters` are those that will change."""
        self.module = module
        self.conditions = Conditions(module)
        self.trains_anyway = not module.training
        self.problem: str | None = None  # why it cannot be repeated
        self.is_complete = True  # whether all that depends on parameters is known
        self._where: str | int | None = None
        leaves, self._form = tree_flatten((args, kwargs))
        self._leaves = [self._kept(leaf, parameters) for leaf in leaves]
        self._versions = [_version_of(leaf) for leaf in self._leaves]
        if self.problem is not None:
            self._leaves = []

    def _kept(self, leaf: Any, parameters: Sequence[Tensor]) -> Any:
        """Return what is to be kept of an input, which is never a graph."""
        if not isinstance(leaf, Tensor) or leaf.grad_fn is None:
            return leaf
        found = _borrowed(leaf)
        if found is not None:
            return found
        if _reaches(leaf, parameters):
            self.problem = (
                f"an input of {type(self.module).__name__} was computed from parameters by something "
                "that is not watched"
            )
            self.is_complete = False
        return leaf.detach().requires_grad_()

    def end(self) -> None:
        """See what the call did to its inputs."""
        if self.problem is None and self._is_changed():
            self.problem = f"{type(self.module).__name__} changes its input in place"

    def _is_changed(self) -> bool:
        return any(
            version is not None and leaf._version != version
            for leaf, version in zip(self._leaves, self._versions, strict=True)
        )

    # --- Doing it again --------------------------------------------------------------------------------

    def repeated(self, done: "dict[Call, list[Any]]") -> list[Any]:
        """Return the leaves of the output, computed at the present parameters, once for all."""
        if self not in done:
            done[self] = leaves_of(self._output(done))
        return done[self]

    def _output(self, done: "dict[Call, list[Any]]") -> Any:
        if self.problem is not None:
            raise Unrepeatable(self.problem)
        if self._is_changed():
            raise Unrepeatable(f"an input of {type(self.module).__name__} was changed before the step")
        leaves = [leaf.of(done) if isinstance(leaf, Borrowed) else leaf for leaf in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._form)
        with self.conditions.again():
            return self.module(*args, **kwargs)

    def compute(self, take: Any) -> Any:
        """Do it again at the present parameters; return what `take` takes out of the output."""
        return take(self._output({}))

    def sources(self) -> "list[Call]":
        """Return all calls that doing it again does, itself the last."""
        found: dict[Call, None] = {}
        for leaf in self._leaves:
            if isinstance(leaf, Borrowed):
                found |= dict.fromkeys(leaf.call.sources())
        return [*found, self]

    def buffers(self) -> dict[Tensor, Tensor]:
        """Return the buffers of all modules that doing it again calls, as they were before."""
        return buffers_before(self.sources())

    def why_not(self) -> str | None:
        """Return why it cannot be done again, if so."""
        return next((one.problem for one in self.sources() if one.problem is not None), None)


def buffers_before(calls: Sequence[Call]) -> dict[Tensor, Tensor]:
    """Return buffers as they were before the first of several calls."""
    before: dict[Tensor, Tensor] = {}
    for one in reversed(calls):
        before |= one.conditions.buffers
    return before


def _version_of(leaf: Any) -> int | None:
    return leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else None


def leaves_of(output: Any) -> list[Any]:
    """Return the leaves of what a module returned, in an order that is always the same."""
    leaves: list[Any] = []
    for leaf in tree_leaves(output):
        is_object = not isinstance(leaf, Tensor) and hasattr(leaf, "__dict__")
        leaves += tree_leaves(dict(vars(leaf))) if is_object else [leaf]
    return leaves


# --- Marks ---------------------------------------------------------------------------------------------


def mark_outputs(call: Call, output: Any, loss: Tensor | None, *, keeps: bool) -> None:
    """Let the graph of an output know which call it came from.

    With `keeps` it also knows the loss in the output, or if there is none, all of it.
    """
    for place, leaf in enumerate(leaves_of(output)):
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
            is_kept = keeps and (loss is None or leaf is loss)
            value = leaf.detach() if is_kept else None
            mark = Mark(call, place, leaf.untyped_storage().data_ptr(), leaf._version, value)
            node: Any = leaf.grad_fn
            node.metadata.setdefault(_KEY, {})[leaf.output_nr] = mark


def marks_on(node: Any) -> dict[int, Mark]:
    """Return the marks of a node, by the number of the node's output."""
    found: dict[int, Mark] = node.metadata.get(_KEY, {})
    return found


def marks_below(loss: Tensor) -> tuple[list[tuple[Any, int]], list[Tensor]]:
    """Return the marked outputs that a loss was computed from, and leaves it depends on otherwise."""
    marked: list[tuple[Any, int]] = []
    others: list[Tensor] = []
    for node, number in edges_below(loss, lambda node, number: number in marks_on(node)):
        if number in marks_on(node):
            marked.append((node, number))
        elif is_leaf(node):
            others.append(node.variable)
    return marked, others


def _borrowed(leaf: Tensor) -> Borrowed | None:
    """Return the output of another call that an input is, or is a view of."""
    node: Any = leaf.grad_fn
    number = leaf.output_nr
    is_view = False
    while node is not None:
        mark = marks_on(node).get(number)
        if mark is not None:
            is_same = (leaf.untyped_storage().data_ptr(), leaf._version) == (mark.storage, mark.version)
            view = (leaf.size(), leaf.stride(), leaf.storage_offset()) if is_view else None
            return Borrowed(mark.call, mark.place, view) if is_same else None
        if node.name().rstrip("0123456789").removesuffix("Backward") not in _VIEWS:
            return None
        is_view = True
        node, number = node.next_functions[0]
    return None


def _reaches(tensor: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether a tensor was computed from one of the parameters."""
    ours = {id(one) for one in parameters}
    edges = edges_below(tensor)
    return any(is_leaf(node) and id(node.variable) in ours for node, _ in edges)
