"""What a method sees of a network: blocks of parameters, and the moments at which it may act.

A block is one layer's weights, or its biases. For one sample its gradient is an outer product plus L2,
so it is never stored: entry (j, i) is ``row[j] * column[i] + l2 * theta[j, i]``, and its curvature is
``row_curvature[j] * column_square[i] + l2``. Biases are a block of a single row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba.extending import overload

from pesky.compiling.compiled import OPTIONS, compiled
from pesky.online.passes import Floats, Samples, Shape, Work

__all__ = [
    "Block",
    "accept",
    "apply",
    "block_of",
    "conclude",
    "gather",
    "implements",
    "observe",
    "prepare",
    "preview",
    "settle",
]

Function = TypeVar("Function", bound=Callable[..., Any])


class Block(NamedTuple):
    """A block's parameters and the factors of its gradient, for one sample."""

    number: int
    start: int  # where the block starts among all parameters
    theta: Floats
    row: Floats
    column: Floats
    row_curvature: Floats
    column_square: Floats
    row_change: Floats
    column_change: Floats
    l2: np.float32
    fresh: bool  # whether curvature was computed for this sample


@compiled
def block_of(shape: Shape, theta: Floats, work: Work, number: int, fresh: bool) -> Block:
    """Block 2k holds the weights of layer k, block 2k + 1 its biases."""
    k = number // 2
    columns, rows = shape.sizes[k], shape.sizes[k + 1]
    above = slice(shape.unit_at[k + 1], shape.unit_at[k + 1] + rows)
    if number % 2 == 0:
        below = slice(shape.unit_at[k], shape.unit_at[k] + columns)
        start = shape.weight_at[k]
        return Block(
            number,
            start,
            theta[start : start + rows * columns],
            work.delta[above],
            work.output[below],
            work.curvature[above],
            work.square[below],
            work.delta_change[above],
            work.output_change[below],
            shape.l2,
            fresh,
        )
    start = shape.bias_at[k]
    return Block(
        number,
        start,
        theta[start : start + rows],
        work.one,
        work.delta[above],
        work.one,
        work.curvature[above],
        work.zero,
        work.delta_change[above],
        np.float32(0),
        fresh,
    )


def accept(state: Any, shape: Shape, theta: Floats, samples: Samples, index: int, loss: float) -> bool:
    """Before everything else: whether to learn from this sample, whose loss may not be finite."""
    return True


def prepare(state: Any, shape: Shape, theta: Floats, work: Work) -> None:
    """Before anything is updated: whatever needs the whole network at its present parameters."""


def preview(state: Any, shape: Shape, theta: Floats, work: Work) -> None:
    """Before an initial sample is observed: whatever needs the whole network."""


def observe(state: Any, block: Block, count: int) -> None:
    """Take initial sample number `count` (from 1) into the averages; parameters do not move."""


def gather(state: Any, block: Block) -> None:
    """First pass over the blocks."""


def conclude(state: Any) -> None:
    """Between the passes."""


def apply(state: Any, block: Block) -> None:
    """Second pass over the blocks."""


def settle(state: Any, shape: Shape, theta: Floats, work: Work, samples: Samples, index: int) -> None:
    """After everything else: whatever needs the sample's loss at other parameters."""


_bodies: dict[tuple[Any, type], Callable[..., Any]] = {}


def implements(moment: Callable[..., Any], state_class: type) -> Callable[[Function], Function]:
    """Register what a method does at one of the moments; a moment not registered is empty.

    Compiled code chooses it by the class of the
    state when a kernel is compiled, so the choice costs nothing at run time.
    """

    def register(body: Function) -> Function:
        _bodies[moment, state_class] = body
        return body

    return register


def _body(moment: Callable[..., Any], state: Any) -> Callable[..., Any]:
    return _bodies.get((moment, state.instance_class), moment)


@overload(prepare, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _prepare(state: Any, shape: Any, theta: Any, work: Any) -> Callable[..., Any]:
    return _body(prepare, state)


@overload(preview, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _preview(state: Any, shape: Any, theta: Any, work: Any) -> Callable[..., Any]:
    return _body(preview, state)


@overload(observe, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _observe(state: Any, block: Any, count: Any) -> Callable[..., Any]:
    return _body(observe, state)


@overload(gather, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _collect(state: Any, block: Any) -> Callable[..., Any]:
    return _body(gather, state)


@overload(conclude, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _conclude(state: Any) -> Callable[..., Any]:
    return _body(conclude, state)


@overload(apply, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _apply(state: Any, block: Any) -> Callable[..., Any]:
    return _body(apply, state)


@overload(settle, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _settle(
    state: Any, shape: Any, theta: Any, work: Any, samples: Any, index: Any
) -> Callable[..., Any]:
    return _body(settle, state)


@overload(accept, jit_options=OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _accept(
    state: Any, shape: Any, theta: Any, samples: Any, index: Any, loss: Any
) -> Callable[..., Any]:
    return _body(accept, state)
