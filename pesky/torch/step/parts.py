"""From parameters to parts of a step, to bundles of parts; and whether the step may be taken at all."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pesky import rule
from pesky.errors import InputError
from pesky.torch.outcome import CURVATURE, GRADIENT
from pesky.torch.passes.bundle import Bundle, Part, Start, statistics_type
from pesky.torch.passes.eager import EagerBundle
from pesky.torch.passes.fused import FusedBundle, is_fusible
from pesky.torch.passes.reading import Reading
from pesky.torch.passes.rows import RowsBundle
from pesky.torch.step.levels import NO_LEVEL, State, floor_of, has_level

__all__ = [
    "Bundles",
    "State",
    "begin_shared",
    "bundles_of",
    "count",
    "fit",
    "forget_beyond",
    "is_collecting",
    "keep",
    "part_of",
    "polyak_curvature",
    "unusable",
]


Bundles: TypeAlias = list[Bundle | RowsBundle]


def part_of(
    parameter: Tensor,
    curvature: Tensor | None,
    group: dict[str, Any],
    state: Any,
    has_levels: bool,
) -> Part:
    """Put together what belongs to a parameter; a new one gets its averages.

    With `has_levels` dense tensors have levels of curvature in place of an average of it.
    """
    gradient = parameter.grad
    assert gradient is not None
    if gradient.shape != parameter.shape:
        raise InputError(
            f"a parameter of shape {tuple(parameter.shape)} has a gradient of shape "
            f"{tuple(gradient.shape)}, from before it was changed: call optimizer.zero_grad()"
        )
    if curvature is not None and curvature.shape != parameter.shape:
        curvature = None  # from before it was changed, too
    fit(parameter, state)
    by_rows = isinstance(state["initial"], Tensor) if state else gradient.is_sparse
    if by_rows:
        _check_rows(group)
    if not state:
        state.update(_begin(parameter, group["granularity"], by_rows, has_levels))
    if by_rows:
        return _rows_part(parameter, gradient, curvature, group, state)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    if curvature is not None and curvature.is_sparse:
        curvature = curvature.to_dense()
    return Part(parameter, gradient, curvature, group, state, floor=floor_of(group))


def _check_rows(group: dict[str, Any]) -> None:
    """Refuse settings of a group that parameters with sparse gradients cannot have."""
    wanted = {"granularity": "element", "decoupled_weight_decay": False}
    for name, value in wanted.items():
        if group[name] != value:
            raise InputError(
                f"{name} must be {value!r} for parameters with sparse gradients, whose rows learn "
                f"separately; got {group[name]!r}: put them into a group of their own"
            )


def _rows_part(
    parameter: Tensor, gradient: Tensor, curvature: Tensor | None, group: dict[str, Any], state: Any
) -> Part:
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        rows, gradient = gradient.indices()[0], gradient.values()
    else:
        rows = torch.arange(len(parameter), device=parameter.device)
    if curvature is not None:
        curvature = _at_rows(curvature, rows, gradient)
    return Part(parameter, gradient, curvature, group, state, rows=rows, floor=floor_of(group))


def _at_rows(curvature: Tensor, rows: Tensor, gradient: Tensor) -> Tensor:
    """Return the rows of a curvature that the gradient has; both lists of rows are in order."""
    if not curvature.is_sparse:
        return curvature[rows]
    curvature = curvature.coalesce()
    found = torch.zeros_like(gradient, dtype=curvature.dtype)
    known = torch.isin(curvature.indices()[0], rows)  # gradients may have been edited since
    found[torch.searchsorted(rows, curvature.indices()[0][known])] = curvature.values()[known]
    return found


# --- What is kept for a parameter ---------------------------------------------------------------------


def _begin(parameter: Tensor, granularity: str, by_rows: bool, has_levels: bool) -> State:
    """Return the averages of a parameter that has seen nothing; `by_rows`: its gradient is sparse."""
    kind = statistics_type(parameter)

    def zeros() -> Tensor:
        return torch.zeros_like(parameter, dtype=kind, memory_format=torch.preserve_format)

    state: State = {"initial": 0, "moves": 0, "mean_gradient": zeros()}
    state |= NO_LEVEL if has_levels and not by_rows else {"mean_curvature": zeros()}
    if granularity == "element":
        state["mean_square"] = zeros()
        state["memory"] = rule.START_MEMORY if has_level(state) else zeros().fill_(rule.START_MEMORY)
    else:
        state |= begin_shared()
    if by_rows:
        state["initial"] = torch.zeros(len(parameter), dtype=torch.int32, device=parameter.device)
    return state


def begin_shared() -> State:
    """Return what tensors that share a rate have in common: a tensor's own, or a group's."""
    return {"power": 0.0, "memory": rule.START_MEMORY, "rate": 0.0, "signal": 0.0}


def forget_beyond(state: State, memory: float) -> None:
    """Let averages weigh no more than so many samples, so that the next ones soon prevail."""
    kept = state.get("memory")
    if isinstance(kept, Tensor):
        kept.clamp_(max=memory)
    elif kept is not None:
        state["memory"] = min(kept, memory)


def is_collecting(state: State, init_batches: int) -> bool:
    """Whether a parameter, or some of its rows, may still have initial batches to see."""
    initial = state["initial"]
    return isinstance(initial, int) and initial < init_batches


def fit(parameter: Tensor, state: State) -> None:
    """Let what is kept for a parameter follow it to another type or device.

    A parameter that has got another shape begins anew.
    """
    kept = state.get("mean_gradient")
    if kept is None:
        return
    if kept.shape != parameter.shape:
        state.clear()
        return
    is_like_it = kept.dtype == parameter.dtype and kept.device == parameter.device
    if is_like_it or (kept.dtype == statistics_type(parameter) and kept.device == parameter.device):
        return
    keep(parameter, state, state)


def keep(parameter: Tensor, state: State, saved: State) -> None:
    """Fill a parameter's state with copies of saved tensors, with its device, type and layout in memory.

    If averages or their squares are too large for that type, as those of float64 may be for float32, it
    begins anew.
    """
    for name, value in saved.items():
        if isinstance(value, Tensor):
            state[name] = _kept_like(parameter, value)
    kept = [value for value in state.values() if isinstance(value, Tensor)]
    squared = state["mean_gradient"].square().sum()
    largest = torch.finfo(squared.dtype).max
    if (
        not all(bool(one.isfinite().all()) for one in (squared, *kept))
        or state.get("power", 0) > largest
    ):
        state.clear()


def _kept_like(parameter: Tensor, value: Tensor) -> Tensor:
    if value.shape != parameter.shape or not value.is_floating_point():
        return value.detach().to(parameter.device, copy=True)
    return torch.empty_like(parameter, dtype=statistics_type(parameter)).copy_(value.detach()).detach()


def count(bundle: Bundle) -> None:
    """Note a move of every part."""
    for part in bundle.parts:
        part.state["moves"] += 1


# --- Bundles ------------------------------------------------------------------------------------------


def bundles_of(parts: Iterable[Part], init_batches: int, reading: Reading | None = None) -> Bundles:
    """Put together what can be worked on together: one stage, kind of rate, type and device.

    What travels from devices to the host is read together with what that reading already expects.
    """
    reading = Reading() if reading is None else reading
    alike: dict[Any, list[Part]] = {}
    for part in parts:
        kind: Any
        if isinstance(part.state["initial"], Tensor):
            kind = RowsBundle
        else:
            kind = FusedBundle if is_fusible(part) else EagerBundle
        collecting = is_collecting(part.state, init_batches)
        shared = part.group["granularity"] != "element"
        key = kind, collecting, shared, part.theta.dtype, part.theta.device
        alike.setdefault(key, []).append(part)
    return [
        EagerBundle(members, reading) if key[0] is EagerBundle else key[0](members)
        for key, members in alike.items()
    ]


def unusable(bundles: Sequence[Bundle | RowsBundle], start: Start) -> str | None:
    """Return why nothing may enter the averages, which would never forget infinity; None if it may."""
    for bundle in bundles:
        power, bend = bundle.powers()
        state = bundle.parts[0].state
        factor = start.factor if is_collecting(state, start.batches) else 1.0
        largest = torch.finfo(state["mean_gradient"].dtype).max
        if not factor * power <= largest:  # nor is NaN
            return GRADIENT
        if not factor * bend <= largest:
            return CURVATURE
    return None


def polyak_curvature(parts: Sequence[Part], bundles: Sequence[Bundle | RowsBundle], loss: float) -> None:
    """Give parts a curvature that nobody could measure: |gradient|^2 / loss, over all of them.

    With it a full step, 1/h, is Polyak's: it ends where the loss, were it linear, would be zero.
    """
    power = sum(bundle.powers()[0] for bundle in bundles)
    for part in parts:
        estimate = power / loss / part.curvature_factor
        kind = statistics_type(part.theta)
        part.curvature = torch.full_like(part.gradient, estimate, dtype=kind)
