"""From a parameter's tensors to a part of the step, and whether the step may be taken at all."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pesky.errors import InputError
from pesky.torch import paper
from pesky.torch.parts import Batch, Part, Start, fit, statistics_type
from pesky.torch.rows import RowsBatch
from pesky.torch.skipping import CURVATURE, GRADIENT

__all__ = ["part_of", "polyak_curvature", "unusable"]


def part_of(parameter: Tensor, curvature: Tensor | None, group: dict[str, Any], state: Any) -> Part:
    """Put together what belongs to a parameter; a new one gets its averages."""
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
    if not state:
        if gradient.is_sparse and group["granularity"] != "element":
            raise InputError(
                f"granularity must be 'element' for parameters with sparse gradients, whose rows learn "
                f"separately; got {group['granularity']!r}: put them into a group of their own"
            )
        state.update(paper.begin(parameter, group["granularity"], gradient.is_sparse))
    if isinstance(state["initial"], Tensor):
        return _rows_part(parameter, gradient, curvature, group, state)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    if curvature is not None and curvature.is_sparse:
        curvature = curvature.to_dense()
    return Part(parameter, gradient, curvature, group, state)


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
    return Part(parameter, gradient, curvature, group, state, rows=rows)


def _at_rows(curvature: Tensor, rows: Tensor, gradient: Tensor) -> Tensor:
    """Return the rows of a curvature that the gradient has; both lists of rows are in order."""
    if not curvature.is_sparse:
        return curvature[rows]
    curvature = curvature.coalesce()
    found = torch.zeros_like(gradient, dtype=curvature.dtype)
    known = torch.isin(curvature.indices()[0], rows)  # gradients may have been edited since
    found[torch.searchsorted(rows, curvature.indices()[0][known])] = curvature.values()[known]
    return found


def unusable(batches: Sequence[Batch | RowsBatch], start: Start) -> str | None:
    """Return why nothing may enter the averages, which would never forget infinity; None if it may."""
    for batch in batches:
        power, bend = batch.powers()
        state = batch.parts[0].state
        factor = start.factor if paper.is_collecting(state, start.batches) else 1.0
        largest = torch.finfo(statistics_type(batch.parts[0].theta)).max
        if not factor * power <= largest:  # nor is NaN
            return GRADIENT
        if not factor * bend <= largest:
            return CURVATURE
    return None


def polyak_curvature(parts: Sequence[Part], batches: Sequence[Batch | RowsBatch], loss: float) -> None:
    """Give parts a curvature that nobody could measure: |gradient|^2 / loss, over all of them.

    With it a full step, 1/h, is Polyak's: it ends where the loss, were it linear, would be zero.
    """
    power = sum(batch.powers()[0] for batch in batches)
    for part in parts:
        estimate = power / loss / part.curvature_factor
        kind = statistics_type(part.theta)
        part.curvature = torch.full_like(part.gradient, estimate, dtype=kind)
