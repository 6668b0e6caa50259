"""The walk from a loss down to its parameters. It knows no operation: rules do.

Three things travel down the graph. `slope` is the ordinary gradient; it is carried only through the
loss itself, until the first operation that bends. There the second derivative, weighted by the slope,
becomes `curvature`, which passes every operation below by its squared Jacobian (Gauss and Newton's
approximation). `bent` is a second derivative that is not settled yet, because the operation (a
logarithm, a square root) makes sense only together with the next one that bends: log and softmax,
root and mean square. It has a sign and goes along with the slope until then.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from pesky.torch.curvature.node import Edge, Node, Tensors, UnsupportedGraph, add, signed
from pesky.torch.curvature.precision import fitted
from pesky.torch.curvature.rules import RULES, Rule
from pesky.torch.curvature.rules.probe import PROBE

__all__ = ["Mode", "Walk"]

Mode = Literal["gauss-newton", "full"]

_reported: set[str] = set()


@dataclass
class Flow:
    """What has arrived at one output of a node."""

    slope: Tensor | None = None
    bent: Tensor | None = None
    curvature: Tensor | None = None

    def receive(self, other: "Flow") -> None:
        """Add what comes along another path."""
        self.slope = add(self.slope, other.slope)
        self.bent = add(self.bent, other.bent)
        self.curvature = add(self.curvature, other.curvature)

    def spread(self) -> None:
        """Make dense what is about some rows only: that is for leaves, and rules cannot work with it.

        It comes here where a loss holds gradients of sparse embeddings.
        """
        self.slope, self.bent = _dense(self.slope), _dense(self.bent)
        self.curvature = _dense(self.curvature)

    def settle(self) -> None:
        """Make the bent part curvature, in absolute value as in Algorithm 1."""
        if self.bent is not None:
            self.curvature = add(self.curvature, self.bent.abs())
        self.slope = self.bent = None


@dataclass
class Walk:
    """One pass over a graph, and what it found."""

    mode: Mode
    strict: bool
    generator: torch.Generator
    wide: torch.dtype | None = None  # in which all numbers are carried, and kept in range
    values: dict[Tensor, Tensor] = field(default_factory=dict)
    curved: bool = False
    probed: set[str] = field(default_factory=set)

    def run(self, root: Edge, slope: Tensor, wanted: Iterable[Tensor]) -> None:
        """Go through all operations between the root and the wanted leaves, consumers first."""
        leaves = {id(one) for one in wanted}
        nodes, waiting = _paths(root.function, leaves, lambda one: Node(one, self.generator, self.wide))
        flows: dict[Any, list[Flow]] = {
            function: [Flow() for _ in function._input_metadata] for function in nodes
        }
        if root.function not in flows:
            return
        flows[root.function][root.output].slope = slope
        ready = [root.function]
        while ready:
            function = ready.pop()
            arrived = flows.pop(function)
            node = nodes[function]
            if node.is_leaf:
                self._arrive(function.variable, arrived[0])
                continue
            for edge, flow in zip(node.edges, self._through(node, arrived), strict=True):
                if edge is None:
                    continue
                flows[edge.function][edge.output].receive(flow)
                waiting[edge.function] -= 1
                if waiting[edge.function] == 0:
                    ready.append(edge.function)

    def _arrive(self, leaf: Tensor, flow: Flow) -> None:
        flow.settle()
        if flow.curvature is not None:
            found = flow.curvature if self.wide is None else fitted(flow.curvature, leaf.dtype)
            self.values[leaf] = found.coalesce() if found.is_sparse else found

    def _through(self, node: Node, arrived: list[Flow]) -> list[Flow]:
        for flow in arrived:
            flow.spread()
        rule = RULES.get(node.kind) or self._probe(node)
        if self.mode != "full":
            for flow in arrived:
                # A layer is not part of the loss any more, nor has |x| a second derivative.
                if (rule.mixes and node.learns) or (rule.kinked and flow.bent is None):
                    flow.settle()
        left = [Flow() for _ in node.edges]
        curvature = [flow.curvature for flow in arrived]
        if any(one is not None for one in curvature):
            passed = node.summed(rule.squared(node, curvature), signed=False)
            for flow, one in zip(left, passed, strict=True):
                flow.curvature = one
        slopes = [flow.slope for flow in arrived]
        if any(one is not None for one in slopes):
            self._bend(node, rule, slopes, [flow.bent for flow in arrived], left)
        return left

    def _bend(self, node: Node, rule: Rule, slopes: Tensors, bent: Tensors, left: list[Flow]) -> None:
        """Carry slopes through an operation, or turn them into curvature where it bends."""
        bends = node.summed(rule.bend(node, slopes)) if rule.bend else [None] * len(node.edges)
        carried = self._signed_squares(node, rule, bent)
        passed = node.summed(node.backward(slopes))
        for flow, slope, bend, second in zip(left, passed, bends, carried, strict=True):
            flow.slope, flow.bent = slope, add(bend, second)
            if bend is not None:
                self.curved = self.curved or bool(bend.any())
                if not rule.outer and self.mode != "full":
                    flow.settle()

    def _signed_squares(self, node: Node, rule: Rule, bent: Tensors) -> Tensors:
        if all(one is None for one in bent):
            return [None] * len(node.edges)
        above, below = zip(*(signed(one) for one in bent), strict=True)
        positive, negative = (
            node.summed(rule.squared(node, part), signed=False) for part in (above, below)
        )
        return [
            None if one is None or other is None else one - other
            for one, other in zip(positive, negative, strict=True)
        ]

    def _probe(self, node: Node) -> Rule:
        if self.strict:
            raise UnsupportedGraph(
                f"bbprop has no rule for {node.name}; without strict=True it is estimated"
            )
        self.probed.add(node.name)
        if node.name not in _reported:
            _reported.add(node.name)
            warnings.warn(
                f"bbprop has no rule for {node.name} and estimates its curvature by random signs: "
                "right on average, noisy in each step",
                stacklevel=2,
            )
        return PROBE


def _dense(tensor: Tensor | None) -> Tensor | None:
    return tensor.to_dense() if tensor is not None and tensor.is_sparse else tensor


def _paths(
    root: Any, leaves: set[int], wrapped: Callable[[Any], Node]
) -> tuple[dict[Any, Node], dict[Any, int]]:
    """Return the nodes on a way from the root to a wanted leaf, and how many edges lead to each.

    Edges to other nodes are cut, so that rules need not compute what leaves along them.
    """
    order = _inputs_first(root)
    leads: dict[Any, Node] = {}
    for function in order:
        node = wrapped(function)
        if node.is_leaf:
            if id(function.variable) in leaves:
                leads[function] = node
            continue
        node.edges = tuple(
            edge if edge is not None and edge.function in leads else None for edge in node.edges
        )
        if any(edge is not None for edge in node.edges):
            leads[function] = node
    waiting = dict.fromkeys(leads, 0)
    for node in leads.values():
        for edge in node.edges:
            if edge is not None:
                waiting[edge.function] += 1
    return leads, waiting


def _inputs_first(root: Any) -> list[Any]:
    order, seen, stack = [], set(), [(root, False)]
    while stack:
        function, expanded = stack.pop()
        if expanded:
            order.append(function)
            continue
        if function in seen:
            continue
        seen.add(function)
        stack.append((function, True))
        stack.extend(
            (source, False)
            for source, _ in function.next_functions
            if source is not None and source not in seen
        )
    return order
