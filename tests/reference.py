"""Slow, obvious twins of the fast code, in the paper's notation and in plain Python floats."""

from dataclasses import dataclass, field


@dataclass
class ReferenceElement:
    """Algorithm 1 for one parameter, as printed; tau is kept at 2 or more as documented."""

    g: float
    v: float
    h: float
    tau: float = 2.0
    rates: list[float] = field(default_factory=list)

    def step(self, theta: float, grad: float, bbprop: float) -> float:
        w = 1 / self.tau
        self.g = (1 - w) * self.g + w * grad
        self.v = (1 - w) * self.v + w * grad**2
        self.h = (1 - w) * self.h + w * abs(bbprop)
        eta = self.g**2 / (self.h * self.v)
        self.tau = max(2.0, (1 - self.g**2 / self.v) * self.tau + 1)
        self.rates.append(eta)
        return theta - eta * grad


@dataclass
class ReferenceBlock:
    """vSGD-g over a list of parameters; one of these per block makes vSGD-b."""

    g: list[float]
    l: float  # noqa: E741
    h: list[float]
    tau: float = 2.0

    def step(self, theta: list[float], grad: list[float], bbprop: list[float]) -> list[float]:
        w = 1 / self.tau
        self.g = [(1 - w) * g + w * x for g, x in zip(self.g, grad, strict=True)]
        self.l = (1 - w) * self.l + w * sum(x**2 for x in grad)
        self.h = [(1 - w) * h + w * abs(x) for h, x in zip(self.h, bbprop, strict=True)]
        signal = sum(g**2 for g in self.g)
        eta = signal / (max(self.h) * self.l)
        self.tau = max(2.0, (1 - signal / self.l) * self.tau + 1)
        return [t - eta * x for t, x in zip(theta, grad, strict=True)]
