"""What an optimizer does and why, in numbers and in words."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from pesky import rule
from pesky.length import length_of
from pesky.torch.passes.eager import curvature_at
from pesky.torch.shards import local_of
from pesky.torch.step.levels import has_level, level_of
from pesky.torch.step.parts import is_collecting

__all__ = ["Explanation", "ParameterReport", "explain", "mean_rates", "state_bytes"]

_ENTRIES = 100_000  # that quartiles of a large tensor are taken of
_LITTLE_SIGNAL = 0.01  # g^2/v below which a gradient is called noise
_SMALL_RATE = 1e-4

Quartiles = tuple[float, float, float]


@dataclass(frozen=True)
class ParameterReport:
    """One parameter tensor; quartiles over its entries, None before there is anything to say."""

    name: str
    shape: tuple[int, ...]
    why: str  # the rate is what it is
    rate: Quartiles | None = None
    memory: Quartiles | None = None  # tau
    signal: Quartiles | None = None  # g^2/v
    curvature: Quartiles | None = None  # h


@dataclass(frozen=True)
class Explanation:
    """Prints as a table."""

    steps: int
    skipped: dict[str, int]  # by reason
    curvature_sources: dict[str, int]  # backward passes by where their curvature came from
    parameters: list[ParameterReport]
    verdict: str  # starting, learning, stuck, skipping or diverging, and why
    collective: dict[str, Any] | None = None  # what the robust dialect's parameters have in common
    state_bytes: float = 0.0  # a parameter

    def as_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the table: medians, with the quartiles in brackets."""
        counts = ", ".join(f"{reason}: {count}" for reason, count in self.skipped.items()) or "none"
        sources = ", ".join(f"{name} ({count})" for name, count in self.curvature_sources.items())
        lines = [
            self.verdict,
            f"{self.steps} steps; skipped: {counts}; curvature from {sources or 'nothing yet'}; "
            f"state: {self.state_bytes:.3g} bytes a parameter",
            *_told(self.collective),
            _line("parameter", "rate", "memory", "signal", "curvature", "why"),
        ]
        for row in self.parameters:
            cells = (_shown(part) for part in (row.rate, row.memory, row.signal, row.curvature))
            lines.append(_line(row.name, *cells, row.why))
        return "\n".join(lines)


def _told(collective: dict[str, Any] | None) -> list[str]:
    if collective is None:
        return []
    history = " ".join(f"{length:.2g}" for length in collective["history"][-1::-8][::-1])
    if collective["form"] == "following":
        return [
            f"scale {collective['scale']:.3g}, so far {history}; it follows the gradients after each "
            "step, as no loss is evaluated again (see docs/pytorch.md); "
            f"steps undone: {collective['restored']}"
        ]
    return [
        f"scale {collective['scale']:.3g} times caution {collective['caution']:.3g}, so far {history}; "
        f"steps shortened: {collective['shortened']}; undone: {collective['restored']}; "
        f"changes of the data: {collective['changes']}; "
        f"visible: the {'average' if collective['shows_average'] else 'iterate'}"
    ]


def _line(name: str, *cells: str) -> str:
    return f"{name:<24}" + "".join(f"  {cell:<27}" for cell in cells[:-1]) + f"  {cells[-1]}"


def _shown(quartiles: Quartiles | None) -> str:
    if quartiles is None:
        return "-"
    low, middle, high = quartiles
    return f"{middle:.2g} [{low:.2g}, {high:.2g}]"


class _Seen(NamedTuple):
    """Averages of the entries that have begun to learn, each a flat tensor, and the rates from them."""

    rate: Tensor
    memory: Tensor
    signal: Tensor
    curvature: Tensor


def named_parameters(optimizer: Any) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Name parameters as the user did, or by number and shape."""
    number = 0
    for group in optimizer.param_groups:
        names = group.get("param_names")
        for k, parameter in enumerate(group["params"]):
            shape = "x".join(map(str, parameter.shape)) or "scalar"
            yield names[k] if names else f"{number} ({shape})", parameter, group
            number += 1


@torch.no_grad()
def explain(optimizer: Any) -> Explanation:
    """Look at every parameter."""
    counters = optimizer.counters
    rows = []
    for name, parameter, group in named_parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        if local_of(parameter).numel() == 0 and parameter.numel() > 0:
            rows.append(ParameterReport(name, tuple(parameter.shape), "other processes have it"))
            continue
        seen = _seen(optimizer, group, state) if state else None
        quartiles = (
            {} if seen is None else {key: _quartiles(value) for key, value in seen._asdict().items()}
        )
        why = _why(optimizer, state, seen)
        rows.append(ParameterReport(name, tuple(parameter.shape), why, **quartiles))
    told = optimizer.collective.as_dict() if optimizer.collective.scale > 0 else None
    if told is not None:
        told["form"] = counters["form"]
    verdict = optimizer.progress.verdict(_collecting(optimizer), optimizer.scale)
    return Explanation(
        counters["steps"],
        dict(counters["skipped"]),
        dict(counters["sources"]),
        rows,
        str(verdict),
        told,
        state_bytes(optimizer)
        / max(1, sum(local_of(one).numel() for _, one, _ in named_parameters(optimizer))),
    )


def state_bytes(optimizer: Optimizer) -> int:
    """Return how much memory the tensors of an optimizer's state take."""
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    )


def _collecting(optimizer: Any) -> str | None:
    """Say that nothing moves yet, if so."""
    if optimizer.counters["moves"] or not optimizer.counters["collecting"]:
        return None
    seen = optimizer.counters["steps"]
    return f"{seen} of {optimizer.init_batches} initial batches, before anything moves"


@torch.no_grad()
def mean_rates(optimizer: Any) -> dict[str, float]:
    """Return the mean rate of each parameter that has begun to learn; 0 for the others."""
    rates = {}
    for name, parameter, group in named_parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        seen = _seen(optimizer, group, state) if state else None
        rates[name] = 0.0 if seen is None or seen.rate.numel() == 0 else float(seen.rate.double().mean())
    return rates


def _seen(optimizer: Any, group: dict[str, Any], state: dict[str, Any]) -> _Seen | None:
    init_batches = optimizer.init_batches
    if is_collecting(state, init_batches):
        return None
    is_along = optimizer.counters["form"] != "paper" and has_level(state)
    lr = float(group["lr"]) * (length_of(optimizer.collective) if is_along else 1.0)
    g, h = state["mean_gradient"], _curvature_of(state, group)
    if group["granularity"] != "element":
        shared = group["shared"] if group["granularity"] == "global" else state
        return _Seen(
            rate=torch.tensor([lr * shared["rate"]], dtype=torch.float64),
            memory=torch.tensor([shared["memory"]], dtype=torch.float64),
            signal=torch.tensor([shared["signal"]], dtype=torch.float64),
            curvature=h.flatten(),
        )
    v, tau = state["mean_square"], torch.as_tensor(state["memory"])
    initial = state["initial"]
    if isinstance(initial, Tensor):
        begun = initial == init_batches
        if not bool(begun.any()):
            return None
        g, v, h, tau = g[begun], v[begun], h[begun], tau[begun]
    signal = rule.noise_ratio(g * g, v)
    rate = lr * rule.learning_rate(signal, rule.at_least(h, group["curvature_floor"]))
    return _Seen(rate.flatten(), tau.flatten(), signal.flatten(), h.flatten())


def _curvature_of(state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """Return h, as the next step sees it; where a rate is shared, the level of the tensor."""
    if not has_level(state):
        found: Tensor = state["mean_curvature"]
        return found
    level = level_of(state, group)
    if "mean_square" in state:
        return curvature_at(level, state["mean_square"])
    return torch.tensor([level.curvature], dtype=torch.float64)


def _quartiles(values: Tensor) -> Quartiles:
    sample = values[:: -(-len(values) // _ENTRIES)].double()
    low, middle, high = torch.quantile(sample, sample.new_tensor([0.25, 0.5, 0.75])).tolist()
    return low, middle, high


def _why(optimizer: Any, state: dict[str, Any], seen: _Seen | None) -> str:
    if not state:
        return "no gradient yet"
    if seen is None:
        initial = state["initial"]
        count = int(initial.max()) if isinstance(initial, Tensor) else initial
        return f"still collecting: {count} of {optimizer.init_batches} initial batches"
    if not bool(state["mean_gradient"].any()):
        return "no gradient: all are zero"
    if not bool(seen.curvature.any()):
        return "no curvature: the rate is zero"
    if _quartiles(seen.signal)[1] < _LITTLE_SIGNAL:
        # The factor C on v wears off as the memory grows: after k steps C / k is left of it.
        is_paper = optimizer.counters["form"] == "paper"
        slow = is_paper and not isinstance(state["initial"], Tensor)
        if slow and state["moves"] < 2 * optimizer.slow_start_factor():
            return "held down by slow start"
        return "held down by noise"
    if _quartiles(seen.rate)[1] < _SMALL_RATE:
        return "held down by curvature"
    return "learning"
