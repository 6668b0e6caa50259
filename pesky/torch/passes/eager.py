"""The passes over tensors of any device and type, one torch operation after another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pesky import rule
from pesky.direction import follow_gradient, relative_square
from pesky.torch.passes.bundle import Directed, Level, Part, Sums, set_finite, statistics_type
from pesky.torch.settings import l2_of

__all__ = ["ELEMENT_AVERAGES", "EagerBundle", "curvature_at", "powers_of", "sample_of", "update_of"]


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
        return self.average(memories)

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

    def direct(self, levels: Sequence[Level], directions: Sequence[Tensor]) -> Directed:
        """Take a sample into the averages, and write directions."""
        sums = []
        samples = zip(self.parts, self._samples, levels, directions, strict=True)
        for part, (gradient, _), level, direction in samples:
            g, v = part.state["mean_gradient"], part.state["mean_square"]
            ratio, *averages = follow_gradient(gradient, g, v, level.weight)
            for average, value in zip((g, v), averages, strict=True):
                average.copy_(value)
            torch.mul(self.rates(ratio, v, level), gradient, out=direction)
            sums.append(torch.stack([(direction * gradient).sum(), (g * g).mean(), v.mean()]))
        slopes, signals, squares = torch.stack(sums).double().T.tolist()
        return Directed(sum(slopes), signals, squares)

    def rates(self, ratio: Tensor, mean_square: Tensor, level: Level) -> Tensor:
        """Return the rates of a tensor's entries in a direction, from g^2/v, v and its level."""
        rates: Tensor = rule.learning_rate(ratio, curvature_at(level, mean_square))
        return rates

    def average(self, memories: Sequence[float]) -> list[Sums]:
        """Take a sample into g and h."""
        sums = []
        for part, (gradient, curvature), memory in zip(self.parts, self._samples, memories, strict=True):
            g, h = part.state["mean_gradient"], part.state.get("mean_curvature")
            g.copy_(rule.average(g, gradient, memory))
            if h is not None and curvature is not None:
                h.copy_(rule.average(h, abs(curvature), memory))
            largest = gradient.new_zeros(()) if h is None else h.max()
            sums.append(torch.stack([(g * g).sum(), (gradient * gradient).sum(), largest]))
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
    floor = h.new_tensor(part.floor)  # a plain number times a comparison would become float32
    bend = h if curvature is None else curvature  # an average does not move towards itself
    return rule.element_update(gradient, bend, g, v, h, tau, floor)


def curvature_at(level: Level, mean_square: Tensor) -> Tensor:
    """Return the curvature of every entry, from the level of its tensor."""
    inverse = mean_square.new_tensor(level.inverse_square)
    relative: Tensor = relative_square(mean_square, inverse)
    return level.curvature * relative.sqrt()


def sample_of(part: Part, theta: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return gradient and curvature of these parameters, unscaled and with L2."""
    decay, kind = l2_of(part.group), statistics_type(part.theta)
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
