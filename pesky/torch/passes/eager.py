"""The passes over tensors of any device and type, one torch operation after another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pesky import rule
from pesky.direction import learn, rate_along, weighted_average
from pesky.torch.passes.bundle import Part, Sums, set_finite, statistics_type

__all__ = ["ELEMENT_AVERAGES", "EagerBundle", "powers_of", "sample_of", "update_of"]


class EagerBundle:
    """See `pesky.torch.passes.bundle.Bundle`."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Compute gradients and curvatures, L2 included, in the type of the averages."""
        self.parts = parts
        self._samples = [sample_of(part, part.theta) for part in parts]

    def powers(self) -> tuple[float, float]:
        """Return sums of gradient^2 and of |curvature|."""
        return powers_of(self._samples)

    def observe(self, memories: Sequence[float]) -> list[Sums]:
        """Take one of the initial batches into all averages."""
        for part, (gradient, _), memory in zip(self.parts, self._samples, memories, strict=True):
            v = part.state.get("mean_square")
            if v is not None:
                v.copy_(rule.average(v, gradient * gradient, memory))
        return self._average(memories, [None] * len(memories))

    def update(self) -> bool:
        """Take a sample into the averages and step, each entry with a rate of its own."""
        held = False
        for part, (gradient, curvature) in zip(self.parts, self._samples, strict=True):
            state = part.state
            g, v, h, tau = (state[name] for name in ELEMENT_AVERAGES)
            rate, *averages = update_of(part, gradient, curvature, g, v, h, tau)
            for average, value in zip((g, v, h, tau), averages, strict=True):
                average.copy_(value)
            held |= set_finite(part.theta, _wide(part.theta) - float(part.group["lr"]) * rate * gradient)
        return held

    def learn(self) -> list[float]:
        """Take a sample into all averages; return each part's sum of h."""
        totals = []
        for part, (gradient, curvature) in zip(self.parts, self._samples, strict=True):
            averages = [part.state[name] for name in ELEMENT_AVERAGES]
            _, *values = update_of(part, gradient, curvature, *averages)
            for average, value in zip(averages, values, strict=True):
                average.copy_(value)
            totals.append(part.state["mean_curvature"].sum())
        return torch.stack(totals).tolist()

    def direct(self, floors: Sequence[float], directions: Sequence[Tensor]) -> float:
        """Write directions, with these lower bounds on h; return the sum of gradient times direction."""
        slopes = []
        samples = zip(self.parts, self._samples, floors, directions, strict=True)
        for part, (gradient, _), floor, direction in samples:
            g, v, h, _ = (part.state[name] for name in ELEMENT_AVERAGES)
            torch.mul(rate_along(g, v, h, h.new_tensor(floor)), gradient, out=direction)
            slopes.append((direction * gradient).sum())
        return float(torch.stack(slopes).double().sum())

    def learn_and_direct(self, floors: Sequence[float], directions: Sequence[Tensor]) -> float:
        """Do both, where no part has a new curvature."""
        self.learn()
        return self.direct(floors, directions)

    def average(self, memories: Sequence[float]) -> list[Sums]:
        """Take a sample into g and h."""
        return self._average(memories, [part.curvature_weight for part in self.parts])

    def _average(self, memories: Sequence[float], weights: Sequence[float | None]) -> list[Sums]:
        sums = []
        every = zip(self.parts, self._samples, memories, weights, strict=True)
        for part, (gradient, curvature), memory, weight in every:
            g, h = part.state["mean_gradient"], part.state["mean_curvature"]
            g.copy_(rule.average(g, gradient, memory))
            if curvature is not None:
                h.copy_(weighted_average(h, abs(curvature), memory, weight))
            sums.append(torch.stack([(g * g).sum(), (gradient * gradient).sum(), h.max()]))
        return [Sums(*row) for row in torch.stack(sums).tolist()]  # one wait for the device, not many

    def descend(self, rates: Sequence[float]) -> bool:
        """Step with one rate a part."""
        held = False
        for part, (gradient, _), rate in zip(self.parts, self._samples, rates, strict=True):
            held |= set_finite(part.theta, _wide(part.theta) - float(part.group["lr"]) * rate * gradient)
        return held


ELEMENT_AVERAGES = ("mean_gradient", "mean_square", "mean_curvature", "memory")


def update_of(
    part: Part, gradient: Tensor, curvature: Tensor | None, g: Tensor, v: Tensor, h: Tensor, tau: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the rate and the new averages of some entries of a part."""
    # A plain number times a comparison would become float32.
    floor, weight = h.new_tensor(part.floor), h.new_tensor(part.curvature_weight)
    bend = h if curvature is None else curvature
    return learn(gradient, bend, g, v, h, tau, floor, weight)


def sample_of(part: Part, theta: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return gradient and curvature of these parameters, unscaled and with L2."""
    decay, kind = part.group["weight_decay"], statistics_type(part.theta)
    gradient = part.gradient.to(kind) * part.gradient_factor + decay * _wide(theta)
    if part.curvature is None:
        return gradient, None
    return gradient, abs(part.curvature.to(kind) * part.curvature_factor) + decay


def powers_of(samples: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[float, float]:
    """Return sums of gradient^2 and of |curvature|, which are finite only if every entry is."""
    sums = [
        torch.stack(
            [(gradient * gradient).sum(), gradient.new_zeros(()) if bend is None else bend.sum()]
        )
        for gradient, bend in samples
    ]
    power, bend = torch.stack([pair.cpu().double() for pair in sums]).sum(dim=0).tolist()
    return power, bend


def _wide(theta: Tensor) -> Tensor:
    return theta.to(statistics_type(theta))
