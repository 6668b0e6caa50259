"""Sparse gradients: every row of an embedding has its own beginning, averages and memory.

A row that no sample touched is not looked at. One touched for the first time collects its own initial
batches and has its own slow start, however long the others have been learning.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pesky import rule
from pesky.torch.passes.bundle import OVERESTIMATED, Part, Start, overestimate
from pesky.torch.passes.eager import ELEMENT_AVERAGES, update_of
from pesky.torch.passes.extent import set_finite
from pesky.torch.passes.single import sample_of

__all__ = ["RowsBundle"]


class RowsBundle:
    """Parts whose gradients are about some rows only."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Compute gradients and curvatures of the rows, L2 included."""
        self.parts = parts
        self._samples = [sample_of(part, part.theta[part.rows]) for part in parts]

    def powers(self) -> tuple[float, float]:
        """Return sums of gradient^2 and of |curvature|, which are finite only if every entry is."""
        sums = [
            torch.stack(
                [gradient.square().sum(), gradient.new_zeros(()) if bend is None else bend.sum()]
            )
            for gradient, bend in self._samples
        ]
        power, bend = torch.stack([pair.cpu().double() for pair in sums]).sum(dim=0).tolist()
        return power, bend

    def advance(self, start: Start) -> bool:
        """Collect in rows that are still new; update the others.

        Entries that would not be finite stay; return whether there are any.
        """
        held = False
        for part, (gradient, curvature) in zip(self.parts, self._samples, strict=True):
            assert part.rows is not None
            new = part.state["initial"][part.rows] < start.batches
            if curvature is not None and bool(new.any()):
                _observe(part, part.rows[new], gradient[new], curvature[new], start)
            if not bool(new.all()):
                bend = None if curvature is None else curvature[~new]
                held |= _update(part, part.rows[~new], gradient[~new], bend)
        return held


def _observe(part: Part, rows: Tensor, gradient: Tensor, curvature: Tensor, start: Start) -> None:
    state = part.state
    state["initial"][rows] += 1
    count = state["initial"][rows]
    memory = count.reshape(-1, *[1] * (gradient.dim() - 1)).to(gradient.dtype)
    complete = rows[count == start.batches]
    samples = {
        "mean_gradient": gradient,
        "mean_square": gradient * gradient,
        "mean_curvature": curvature,
    }
    for name, sample in samples.items():
        state[name][rows] = rule.average(state[name][rows], sample, memory)
    if len(complete):
        for name in OVERESTIMATED:
            state[name][complete] = overestimate(state[name][complete], start, rows=len(complete))


def _update(part: Part, rows: Tensor, gradient: Tensor, curvature: Tensor | None) -> bool:
    g, v, h, tau = (part.state[name][rows] for name in ELEMENT_AVERAGES)
    rate, *averages = update_of(part, gradient, curvature, g, v, h, tau)
    for name, value in zip(ELEMENT_AVERAGES, averages, strict=True):
        part.state[name][rows] = value
    step = float(part.group["lr"]) * rate * gradient
    touched = part.theta[rows]
    held = set_finite(touched, touched.to(step.dtype) - step)
    part.theta[rows] = touched
    return held
