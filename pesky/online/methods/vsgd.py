"""vSGD, the paper's method: nothing needs setting."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from pesky import rule
from pesky.compiling.compiled import compiled, largest_of
from pesky.errors import InputError, check_count, check_number
from pesky.online.blocks import apply, conclude, gather, implements, observe
from pesky.online.methods import robust
from pesky.online.methods.base import Beginning, Method, State, descend
from pesky.online.passes import LARGEST, Floats, Integers

__all__ = ["VSGD"]


class ElementState(NamedTuple):
    """vSGD-l: one entry a parameter."""

    mean_gradient: Floats  # g
    mean_square: Floats  # v
    mean_curvature: Floats  # h
    memory: Floats  # tau
    floor: np.float32 | None


class GroupState(NamedTuple):
    """vSGD-b and -g: blocks that share a rate form a group."""

    mean_gradient: Floats  # g, one a parameter
    mean_curvature: Floats  # h, one a parameter
    power: Floats  # l, from here on one a group
    memory: Floats  # tau
    rate: Floats
    signal: Floats  # sum of g^2 of this step
    square: Floats  # squared gradient of this step
    largest: Floats  # h+ of this step
    group: Integers  # the group of each block
    floor: np.float32 | None


@compiled
def _element_row(
    theta: Any,
    g: Any,
    v: Any,
    h: Any,
    tau: Any,
    column: Any,
    column_square: Any,
    pull: Any,
    bend: Any,
    l2: Any,
    fresh: bool,
    floor: Any,
) -> None:
    if fresh:
        for i in range(theta.size):
            gradient = pull * column[i] + l2 * theta[i]
            rate, g[i], v[i], h[i], tau[i] = rule.element_update(
                gradient, bend * column_square[i] + l2, g[i], v[i], h[i], tau[i], floor
            )
            theta[i] -= rate * gradient
    else:
        # An average does not move towards itself: the curvature stays as it is.
        for i in range(theta.size):
            gradient = pull * column[i] + l2 * theta[i]
            rate, g[i], v[i], h[i], tau[i] = rule.element_update(
                gradient, h[i], g[i], v[i], h[i], tau[i], floor
            )
            theta[i] -= rate * gradient


@implements(gather, ElementState)
def _collect_elements(state: Any, block: Any) -> None:
    columns = block.column.size
    for j in range(block.row.size):
        here = slice(block.start + j * columns, block.start + (j + 1) * columns)
        _element_row(
            block.theta[j * columns : (j + 1) * columns],
            state.mean_gradient[here],
            state.mean_square[here],
            state.mean_curvature[here],
            state.memory[here],
            block.column,
            block.column_square,
            block.row[j],
            block.row_curvature[j],
            block.l2,
            block.fresh,
            state.floor,
        )


@compiled
def _average_row(
    theta: Any,
    g: Any,
    h: Any,
    column: Any,
    column_square: Any,
    pull: Any,
    bend: Any,
    l2: Any,
    memory: Any,
    fresh: bool,
) -> tuple[Any, Any, Any]:
    """Take a row of the gradient into g and h; return its sums of g^2, of gradient^2, and its h+."""
    signal, square = np.float32(0), np.float32(0)
    for i in range(theta.size):
        gradient = pull * column[i] + l2 * theta[i]
        g[i] = rule.average(g[i], gradient, memory)
        if fresh:
            h[i] = rule.average(h[i], bend * column_square[i] + l2, memory)
        signal += g[i] * g[i]
        square += gradient * gradient
    return signal, square, largest_of(h)


@compiled
def _average_block(state: Any, block: Any, memory: Any) -> tuple[Any, Any, Any]:
    columns = block.column.size
    signal, square, largest = np.float32(0), np.float32(0), np.float32(0)
    for j in range(block.row.size):
        here = slice(block.start + j * columns, block.start + (j + 1) * columns)
        row_signal, row_square, row_largest = _average_row(
            block.theta[j * columns : (j + 1) * columns],
            state.mean_gradient[here],
            state.mean_curvature[here],
            block.column,
            block.column_square,
            block.row[j],
            block.row_curvature[j],
            block.l2,
            memory,
            block.fresh,
        )
        signal += row_signal
        square += row_square
        largest = max(largest, row_largest)
    return signal, square, largest


@implements(gather, GroupState)
def _collect_groups(state: Any, block: Any) -> None:
    group = state.group[block.number]
    signal, square, largest = _average_block(state, block, state.memory[group])
    state.signal[group] += signal
    state.square[group] += square
    state.largest[group] = max(state.largest[group], largest)


@implements(conclude, GroupState)
def _conclude_groups(state: Any) -> None:
    for group in range(state.memory.size):
        memory = state.memory[group]
        state.power[group] = rule.average(state.power[group], state.square[group], memory)
        ratio = rule.noise_ratio(state.signal[group], state.power[group])
        curvature = rule.at_least(state.largest[group], state.floor)
        state.rate[group] = rule.learning_rate(ratio, curvature)
        state.memory[group] = rule.next_memory(memory, ratio)
        state.signal[group] = state.square[group] = state.largest[group] = np.float32(0)


@implements(apply, GroupState)
def _apply_groups(state: Any, block: Any) -> None:
    descend(block, state.rate[state.group[block.number]])


@implements(observe, ElementState)
def _observe_elements(state: Any, block: Any, count: int) -> None:
    columns = block.column.size
    memory = np.float32(count)
    _average_block(state, block, memory)
    for j in range(block.row.size):
        theta = block.theta[j * columns : (j + 1) * columns]
        v = state.mean_square[block.start + j * columns : block.start + (j + 1) * columns]
        for i in range(columns):
            gradient = block.row[j] * block.column[i] + block.l2 * theta[i]
            v[i] = rule.average(v[i], gradient * gradient, memory)


@implements(observe, GroupState)
def _observe_groups(state: Any, block: Any, count: int) -> None:
    group = state.group[block.number]
    memory = np.float32(count)
    _, square, _ = _average_block(state, block, memory)
    if block.number == 0 or state.group[block.number - 1] != group:
        state.power[group] -= state.power[group] / memory
    state.power[group] += square / memory


@dataclass(frozen=True)
class VSGD(Method):
    """vSGD-l, -b, -g for granularity element, block, global; blocks are weights and biases of a layer.

    Nothing needs setting.

    Args:
        granularity: what shares a rate: nothing ("element"), a block of parameters, or all ("global").
        slow_start: the factor C; None: a tenth of the number of parameters.
        init_samples: samples that are averaged before the first step; None: a thousandth of the data, 10
            in a stream.
        dialect: how the paper's slow start is read. "paper" reproduces its tables: C scales v and h,
            and the memory starts at 2. "literal" scales v only, and the memory starts at the number of
            initial samples. "robust" is a method of its own (docs/theory.md): rates for each parameter,
            all of them times a scale that is measured by evaluating each sample's loss again; 10
            initial samples, no slow start. Between calls the network's parameters are then the average
            of the iterates, where that was better lately.
        curvature_floor: a lower bound on the curvature.
        curvature_every: bbprop runs in one of so many updates; None: in each. In the robust dialect
            levels are measured in at least one of so many; None: ever more seldom.

    Example:

    >>> from pesky.online import VSGD, Network, fit
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> network = Network([1, 2])
    >>> _ = fit(network, VSGD(), X, y, epochs=200)
    >>> network.predict([[0.2], [2.9]]).tolist()
    [0, 1]
    """

    granularity: Literal["element", "block", "global"] = "element"
    slow_start: float | None = None
    init_samples: int | None = None
    dialect: Literal["paper", "literal", "robust"] = "paper"
    curvature_floor: float | None = None
    curvature_every: int | None = None

    name = "vsgd"

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        if self.granularity not in ("element", "block", "global"):
            raise InputError(
                f"granularity must be 'element', 'block' or 'global'; got {self.granularity!r}"
            )
        if self.dialect not in ("paper", "literal", "robust"):
            raise InputError(f"dialect must be 'paper', 'literal' or 'robust'; got {self.dialect!r}")
        if self.dialect == "robust":
            self._check_robust()
        if self.slow_start is not None:
            self._keep(slow_start=check_number("slow_start", self.slow_start, least=1, most=LARGEST))
        if self.init_samples is not None:
            self._keep(init_samples=check_count("init_samples", self.init_samples))
        if self.curvature_floor is not None:
            floor = check_number("curvature_floor", self.curvature_floor, above=0, most=LARGEST)
            self._keep(curvature_floor=floor)
        if self.curvature_every is not None:
            self._keep(curvature_every=check_count("curvature_every", self.curvature_every))
        elif self.dialect != "robust":
            self._keep(curvature_every=1)

    def _check_robust(self) -> None:
        if self.granularity != "element":
            raise InputError(
                f"dialect 'robust' is for granularity 'element' only; got {self.granularity!r}"
            )
        if self.slow_start is not None:
            raise InputError(f"dialect 'robust' has no slow_start; got {self.slow_start!r}")
        if self.init_samples is None:
            self._keep(init_samples=robust.INITIAL_SAMPLES)

    @property
    def bbprop_every(self) -> int:
        """In one of how many updates bbprop runs; in the robust dialect, never."""
        return 0 if self.dialect == "robust" else self.curvature_every or 1

    def begin(self, beginning: Beginning) -> State:
        """Return averages that are yet to see the initial samples."""
        floor = None if self.curvature_floor is None else np.float32(self.curvature_floor)
        if self.dialect == "robust":
            return robust.begin(beginning, floor, self.curvature_every)
        g, v, h = (np.zeros(beginning.parameters, np.float32) for _ in range(3))
        if self.granularity == "element":
            return ElementState(g, v, h, np.full_like(g, rule.START_MEMORY), floor)
        together = self.granularity == "global"
        blocks = len(beginning.block_sizes)
        group = np.zeros(blocks, np.int64) if together else np.arange(blocks)
        size = 1 if together else blocks
        power, rate, signal, square, largest = (np.zeros(size, np.float32) for _ in range(5))
        memory = np.full_like(power, rule.START_MEMORY)
        return GroupState(g, h, power, memory, rate, signal, square, largest, group, floor)

    def initial_factor(self, beginning: Beginning) -> float:
        """Return C."""
        if self.slow_start is not None:
            return float(self.slow_start)
        if self.dialect == "robust":
            return 1.0
        return rule.slow_start_factor(beginning.parameters)

    def end_look(self, state: State, beginning: Beginning, samples: int) -> None:
        """Overestimate, so that the first steps are small."""
        if self.dialect == "robust":
            robust.end_look(state, samples)
            return
        factor = np.float32(self.initial_factor(beginning))
        power = state.mean_square if self.granularity == "element" else state.power
        power *= factor
        if self.dialect == "paper":
            state.mean_curvature[:] *= factor
        else:
            state.memory[:] = max(rule.START_MEMORY, samples)

    def enter(self, state: State, theta: Floats) -> None:
        """Go to the iterate, in the robust dialect."""
        if self.dialect == "robust":
            robust.enter(state, theta)

    def leave(self, state: State, theta: Floats) -> None:
        """Show the better of iterate and average, in the robust dialect."""
        if self.dialect == "robust":
            robust.leave(state, theta)

    def rates(self, state: State) -> Floats:
        """One a parameter, one a block or one."""
        if self.dialect == "robust":
            return robust.rates(state)
        if self.granularity != "element":
            return np.asarray(state.rate)
        ratio = rule.noise_ratio(state.mean_gradient * state.mean_gradient, state.mean_square)
        curvature = rule.at_least(state.mean_curvature, state.floor)
        return np.asarray(rule.learning_rate(ratio, curvature))

    def memory(self, state: State) -> Floats:
        """Return tau: one a parameter, one a block or one."""
        return np.asarray(state.memory)
