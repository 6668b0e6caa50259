"""How the robust dialect takes a step: one direction, as long as the loss along it allows.

See docs/theory.md. The direction p is the paper's step, with curvatures below their tensor's mean
raised to it. Its length comes from the loss at its end; how much of that is used, from a comparison
with the average of the iterates.
"""

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pesky import rule
from pesky.errors import InputError
from pesky.torch import paper
from pesky.torch.collective import Collective
from pesky.torch.distributed import process_group
from pesky.torch.evaluating import Evaluation
from pesky.torch.parts import Batch, Part
from pesky.torch.places import Places
from pesky.torch.rows import RowsBatch

__all__ = ["Losses", "check", "refusal", "step"]

PROBE = 1e-3  # of the direction, before anything is known about its length
SHORTEST = 1e-12
ATTEMPTS = 8  # to shorten a step


def refusal(what: str) -> InputError:
    """Return the error about something that this dialect cannot work with."""
    return InputError(f"dialect='robust' does not work with {what} yet: use dialect='paper'")


def check(parts: Sequence[Part], optimizer: Any) -> None:
    """Refuse what this dialect cannot work with."""
    if getattr(optimizer, "found_inf", None) is not None:
        raise refusal("a GradScaler")
    if process_group(optimizer.process_group) is not None:
        raise refusal("data-parallel training")
    for part in parts:
        if part.theta.dtype not in (torch.float32, torch.float64):
            raise refusal(f"parameters of type {part.theta.dtype}")


class Losses:
    """The losses of this step's batches, in sum and with the L2 penalty, at any parameters."""

    def __init__(self, evaluations: Sequence[Evaluation], groups: Sequence[dict[str, Any]]) -> None:
        """Compute the one at the present parameters."""
        self._evaluations = evaluations
        self._decayed = [(group["weight_decay"], group["params"]) for group in groups]
        self.rounding = max(one.rounding for one in evaluations)
        self.first = sum(one.loss for one in evaluations) + self._penalty()

    def again(self, keep_buffers: bool = False) -> float:
        """Evaluate at the present parameters."""
        return sum(one.again(keep_buffers) for one in self._evaluations) + self._penalty()

    def _penalty(self) -> float:
        return sum(
            float(decay) / 2 * float(one.detach().double().square().sum())
            for decay, parameters in self._decayed
            if decay
            for one in parameters
        )


class Direction(NamedTuple):
    """Where to move, and the sum of gradient times direction."""

    parts: list[Part]
    values: list[Tensor]
    slope: float


def step(
    batches: Sequence[Batch | RowsBatch],
    init_batches: int,
    losses: Losses,
    collective: Collective,
    places: Places,
) -> None:
    """Let every batch collect or move."""
    moving = []
    for batch in batches:
        if isinstance(batch, RowsBatch):
            raise refusal("sparse gradients")
        if paper.is_collecting(batch.parts[0].state, init_batches):
            paper.collect(batch, init_batches, 1.0, max(rule.START_MEMORY, float(init_batches)))
        else:
            moving.append(batch)
            paper.count(batch)
    direction = _direction(moving)
    if direction.slope > 0:
        _move(direction, losses, collective, places)


def _direction(batches: Sequence[Batch]) -> Direction:
    elements = [batch for batch in batches if batch.parts[0].group["granularity"] == "element"]
    sharing = [batch for batch in batches if batch.parts[0].group["granularity"] != "element"]
    parts: list[Part] = []
    values: list[Tensor] = []
    slope = 0.0
    for batch in elements:
        totals = zip(batch.parts, batch.learn(), strict=True)
        # An entry's curvature below its tensor's mean is not believed.
        found, of_batch = batch.direct([max(p.floor, total / p.theta.numel()) for p, total in totals])
        parts += batch.parts
        values += found
        slope += of_batch
    for batch, rates in zip(sharing, paper.shared_rates(sharing), strict=True):
        for part, rate in zip(batch.parts, rates, strict=True):
            gradient = part.gradient + part.group["weight_decay"] * part.theta
            parts.append(part)
            values.append(gradient * rate)
            slope += rate * float((gradient * gradient).sum())
    return Direction(parts, values, slope)


def _move(direction: Direction, losses: Losses, collective: Collective, places: Places) -> None:
    parameters = [part.theta for part in direction.parts]
    places.begin(parameters)

    def loss_after(scale: float) -> float:
        places.attempt(parameters, direction.values, scale)
        return losses.again()

    collective.add_slope(direction.slope)
    if collective.scale == 0:
        _begin(direction.slope, losses.first, loss_after, collective)
    collective.adapt()
    if collective.is_average_due:
        places.go("average")
        collective.compare(losses.first - losses.again(keep_buffers=collective.shows_average))
    if _measure(direction.slope, losses, loss_after, collective):
        length = collective.caution * collective.scale
        scales = [float(part.group["lr"]) * length for part in direction.parts]
        places.move(parameters, direction.values, scales)


def _begin(
    slope: float, first: float, loss_after: Callable[[float], float], collective: Collective
) -> None:
    """Find the first scale: probe shorter steps until one lowers the loss, then longer ones.

    Both the first probe that lowers the loss and the one that goes too far tell a curvature, and the
    larger one is believed. A separable problem needs no scale above 1.
    """

    def curvature_at(scale: float, loss: float) -> float:
        return rule.measured_curvature(loss - first, slope, scale) if isfinite(loss) else inf

    scale, loss = PROBE, loss_after(PROBE)
    while not loss < first and scale > SHORTEST:
        scale /= 10
        loss = loss_after(scale)
    near = rule.next_scale(slope, curvature_at(scale, loss), 1.0)
    best, lowest = scale, loss
    while loss <= lowest and scale < 1:
        best, lowest = scale, loss
        scale *= 10
        loss = loss_after(scale)
    collective.begin(min(near, max(best, rule.next_scale(slope, curvature_at(scale, loss), 1.0))))


def _measure(
    slope: float, losses: Losses, loss_after: Callable[[float], float], collective: Collective
) -> bool:
    """Measure the curvature along the step, and shorten it if need be; False: nothing helps."""
    scale, first = collective.scale, losses.first
    loss = loss_after(scale)
    attempts = 0
    while not loss - first <= scale * slope and attempts < ATTEMPTS:  # NaN is not
        attempts += 1
        shorter = 0.0
        if isfinite(loss):
            shorter = max(slope / rule.measured_curvature(loss - first, slope, scale), scale / 100)
        scale = min(scale / 4, shorter or scale / 4)
        loss = loss_after(scale)
    if attempts:
        collective.shorten(scale)
        return loss - first <= scale * slope
    curvature = rule.measured_curvature(loss - first, slope, scale)
    error = 4 * losses.rounding * (abs(loss) + abs(first))
    if loss - first + scale * slope > error or curvature < collective.curvature.value:
        collective.add_curvature(curvature)
    return True
