"""Slow, obvious twins of the online engine: float64, plain NumPy, in the paper's notation.

Gradients and curvatures are full matrices, one a block; a list of blocks is W_1, b_1, W_2, b_2, ...
Everything up to the gradient takes complex numbers too: the imaginary part of f(theta + i eps v) / eps
is the derivative of f along v, exact to the last digit and without a second line of calculus.
"""

from dataclasses import dataclass, field

import numpy as np

EPS = 1e-30


class Model:
    """The network of an engine's `Network`, copied out of it."""

    def __init__(self, network):
        self.activation, self.loss_name, self.l2 = network.activation, network.loss, network.l2
        self.blocks = []
        for weights, biases in network.layers():
            self.blocks += [weights.astype(np.float64), biases.astype(np.float64)]

    @property
    def flat(self):
        return flat(self.blocks)

    def f(self, a):
        if self.activation == "tanh":
            return np.tanh(a)
        return np.where(a.real > 0, a, 0) if self.activation == "relu" else a

    def df(self, a):
        if self.activation == "tanh":
            return 1 - np.tanh(a) ** 2
        return np.where(a.real > 0, 1.0, 0.0) if self.activation == "relu" else np.ones(len(a))

    def forward(self, blocks, x):
        """Return what comes into every layer, and what comes into the units of every layer."""
        inputs, sums = [np.asarray(x, np.float64)], []
        for W, b in zip(blocks[0::2], blocks[1::2], strict=True):
            sums.append(W @ inputs[-1] + b)
            inputs.append(self.f(sums[-1]))
        return inputs[:-1], sums

    def outputs(self, x):
        return self.forward(self.blocks, x)[1][-1]

    def loss(self, x, target, blocks=None):
        """One sample's loss, without L2."""
        y = self.forward(self.blocks if blocks is None else blocks, x)[1][-1]
        if self.loss_name == "squared-error":
            return np.sum((y - target) ** 2) / 2
        largest = y.real.max()
        return np.log(np.sum(np.exp(y - largest))) + largest - y[target]

    def objective(self, x, target, blocks=None):
        """One sample's loss with L2: what is descended."""
        blocks = self.blocks if blocks is None else blocks
        return self.loss(x, target, blocks) + self.l2 / 2 * sum(np.sum(W**2) for W in blocks[0::2])

    def last_delta(self, outputs, target):
        if self.loss_name == "squared-error":
            return outputs - target
        delta = softmax(outputs)
        delta[target] -= 1
        return delta

    def gradient(self, x, target, blocks=None):
        """Of `objective`, by backpropagation."""
        blocks = self.blocks if blocks is None else blocks
        inputs, sums = self.forward(blocks, x)
        delta = self.last_delta(sums[-1], target)
        gradient = []
        for k in reversed(range(len(sums))):
            W = blocks[2 * k]
            gradient = [np.outer(delta, inputs[k]) + self.l2 * W, delta, *gradient]
            if k > 0:
                delta = (W.T @ delta) * self.df(sums[k - 1])
        return gradient

    def curvature(self, x):
        """bbprop in its Gauss-Newton form (LeCun et al. 1998), L2 included."""
        inputs, sums = self.forward(self.blocks, x)
        if self.loss_name == "squared-error":
            bend = np.ones(len(sums[-1]))
        else:
            bend = softmax(sums[-1]) * (1 - softmax(sums[-1]))
        curvature = []
        for k in reversed(range(len(sums))):
            curvature = [np.outer(bend, inputs[k] ** 2) + self.l2, bend, *curvature]
            if k > 0:
                bend = ((self.blocks[2 * k] ** 2).T @ bend) * self.df(sums[k - 1]) ** 2
        return curvature

    def hessian_times(self, x, target, v):
        """Derivative of the gradient along v."""
        moved = [b + 1j * EPS * part for b, part in zip(self.blocks, v, strict=True)]
        return [g.imag / EPS for g in self.gradient(x, target, moved)]

    def derivatives(self, x, target):
        """Gradient of `objective` once more, one parameter at a time and without backpropagation."""
        gradient = []
        for n, block in enumerate(self.blocks):
            slopes = np.empty(block.shape)
            for index in np.ndindex(block.shape):
                moved = [b.astype(complex) for b in self.blocks]
                moved[n][index] += 1j * EPS
                slopes[index] = self.objective(x, target, moved).imag / EPS
            gradient.append(slopes)
        return gradient


def softmax(y):
    share = np.exp(y - y.real.max())
    return share / share.sum()


def flat(blocks):
    return np.concatenate([np.ravel(block) for block in blocks])


def ratio_of(numerator, denominator):
    """Divide; 0/0 and x/0 are 0, as the findings' section 4 settles it."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    result = np.zeros(np.shape(numerator))
    np.divide(numerator, denominator, out=result, where=denominator != 0)
    return result


def memory_after(tau, ratio):
    return np.maximum(2.0, (1 - ratio) * tau + 1)


@dataclass
class Twin:
    """A method training a model. `rates` are those of the last step, laid out as the engine's."""

    model: Model
    t: int = 0

    def begin(self, samples):
        """Look at the initial samples, if the method does."""

    def step(self, x, target):
        raise NotImplementedError

    @property
    def visible(self):
        """What the engine's network shows."""
        return self.model.flat

    def statistics(self):
        """Return arrays by the engine's names for them."""
        return {}


@dataclass
class TwinVSGD(Twin):
    C: float | None = None
    dialect: str = "paper"
    floor: float = 0.0
    every: int = 1

    def look(self, samples):
        gradients = [self.model.gradient(x, target) for x, target in samples]
        curvatures = [self.model.curvature(x) for x, _ in samples]
        self.g = [np.mean(parts, axis=0) for parts in zip(*gradients, strict=True)]
        self.h = [np.mean(np.abs(parts), axis=0) for parts in zip(*curvatures, strict=True)]
        if self.C is None:
            self.C = max(1.0, len(self.model.flat) / 10)
        if self.dialect == "paper":
            self.h = [self.C * h for h in self.h]
            self.first_tau = 2.0
        else:
            self.first_tau = max(2.0, float(len(samples)))
        return gradients

    def curvatures(self, x):
        """Return None in the updates that go without bbprop; h then stays as it is."""
        self.t += 1
        return self.model.curvature(x) if (self.t - 1) % self.every == 0 else None


@dataclass
class TwinElement(TwinVSGD):
    """vSGD-l, Algorithm 1."""

    def begin(self, samples):
        gradients = self.look(samples)
        squares = ([g**2 for g in gradient] for gradient in gradients)
        self.v = [self.C * np.mean(parts, axis=0) for parts in zip(*squares, strict=True)]
        self.tau = [np.full(v.shape, self.first_tau) for v in self.v]

    def step(self, x, target):
        gradient, curvature = self.model.gradient(x, target), self.curvatures(x)
        self.rates = []
        for n, grad in enumerate(gradient):
            w = 1 / self.tau[n]
            self.g[n] = (1 - w) * self.g[n] + w * grad
            self.v[n] = (1 - w) * self.v[n] + w * grad**2
            if curvature is not None:
                self.h[n] = (1 - w) * self.h[n] + w * np.abs(curvature[n])
            ratio = ratio_of(self.g[n] ** 2, self.v[n])
            eta = ratio_of(ratio, np.maximum(self.h[n], self.floor))
            self.tau[n] = memory_after(self.tau[n], ratio)
            self.model.blocks[n] -= eta * grad
            self.rates.append(eta)
        self.rates = flat(self.rates)

    def statistics(self):
        return {
            "mean_gradient": flat(self.g),
            "mean_square": flat(self.v),
            "mean_curvature": flat(self.h),
            "memory": flat(self.tau),
        }


@dataclass
class TwinGroups(TwinVSGD):
    """vSGD-b and vSGD-g: `groups` lists which blocks share a rate."""

    groups: list = field(default_factory=list)

    def begin(self, samples):
        gradients = self.look(samples)
        lengths = [[np.sum(g**2) for g in gradient] for gradient in gradients]
        per_block = np.mean(lengths, axis=0)
        self.l = np.array([self.C * sum(per_block[n] for n in group) for group in self.groups])
        self.tau = np.full(len(self.groups), self.first_tau)

    def step(self, x, target):
        gradient, curvature = self.model.gradient(x, target), self.curvatures(x)
        self.rates = np.zeros(len(self.groups))
        for m, group in enumerate(self.groups):
            w = 1 / self.tau[m]
            for n in group:
                self.g[n] = (1 - w) * self.g[n] + w * gradient[n]
                if curvature is not None:
                    self.h[n] = (1 - w) * self.h[n] + w * np.abs(curvature[n])
            self.l[m] = (1 - w) * self.l[m] + w * sum(np.sum(gradient[n] ** 2) for n in group)
            ratio = ratio_of(sum(np.sum(self.g[n] ** 2) for n in group), self.l[m])
            h_plus = max(np.max(self.h[n]) for n in group)
            self.rates[m] = ratio_of(ratio, max(h_plus, self.floor))
            self.tau[m] = memory_after(self.tau[m], ratio)
            for n in group:
                self.model.blocks[n] -= self.rates[m] * gradient[n]

    def statistics(self):
        return {
            "mean_gradient": flat(self.g),
            "mean_curvature": flat(self.h),
            "power": self.l,
            "memory": self.tau,
        }


def twin_vsgd(model, granularity, **settings):
    if granularity == "element":
        return TwinElement(model, **settings)
    blocks = range(len(model.blocks))
    groups = [[n] for n in blocks] if granularity == "block" else [list(blocks)]
    return TwinGroups(model, groups=groups, **settings)


@dataclass
class TwinSGD(Twin):
    eta0: float = 0.1
    gamma: float = 0.0

    def step(self, x, target):
        eta = self.eta0 / (1 + self.gamma * self.t)
        for block, grad in zip(self.model.blocks, self.model.gradient(x, target), strict=True):
            block -= eta * grad
        self.t += 1
        self.rates = np.array([eta])


@dataclass
class TwinAdaGrad(Twin):
    eta0: float = 0.1

    def begin(self, samples):
        self.total = [np.zeros(block.shape) for block in self.model.blocks]

    def step(self, x, target):
        self.rates = []
        for n, grad in enumerate(self.model.gradient(x, target)):
            self.total[n] += grad**2
            self.rates.append(ratio_of(self.eta0, np.sqrt(self.total[n])))
            self.model.blocks[n] -= self.rates[n] * grad
        self.rates = flat(self.rates)

    def statistics(self):
        return {"total": flat(self.total)}


@dataclass
class TwinSquares(Twin):
    """Amari and Almeida both keep v, begun at one or as the mean over the initial samples."""

    eta0: float = 0.1
    tau: float = 100.0
    start: str = "one"

    def begin(self, samples):
        squares = ([g**2 for g in self.model.gradient(x, target)] for x, target in samples)
        self.v = [np.mean(parts, axis=0) for parts in zip(*squares, strict=True)]
        if self.start == "one":
            self.v = [np.ones(v.shape) for v in self.v]
        self.last = [np.zeros(v.shape) for v in self.v]

    def step(self, x, target):
        self.rates = []
        for n, grad in enumerate(self.model.gradient(x, target)):
            self.v[n] = (1 - 1 / self.tau) * self.v[n] + grad**2 / self.tau
            self.rates.append(self.rate(n, grad))
            self.model.blocks[n] -= self.rates[n] * grad
            self.last[n] = grad
        self.rates = flat(self.rates)


@dataclass
class TwinAmari(TwinSquares):
    def rate(self, n, grad):
        return ratio_of(self.eta0, self.v[n])

    def statistics(self):
        return {"mean_square": flat(self.v)}


@dataclass
class TwinAlmeida(TwinSquares):
    reading: str = "product"

    def begin(self, samples):
        super().begin(samples)
        self.eta = [np.full(v.shape, 1e-3) for v in self.v]  # of the multiplicative reading

    def rate(self, n, grad):
        if self.reading == "printed":
            return np.maximum(0, ratio_of(self.eta0 * self.model.blocks[n] * self.last[n], self.v[n]))
        agreement = ratio_of(self.eta0 * grad * self.last[n], self.v[n])
        if self.reading == "product":
            return np.maximum(0, agreement)
        self.eta[n] = np.maximum(0, self.eta[n] * (1 + agreement))
        return self.eta[n]

    def statistics(self):
        return {"mean_square": flat(self.v), "last_gradient": flat(self.last)}


@dataclass
class TwinSMD(Twin):
    """The paper's appendix; `v` is its auxiliary vector."""

    eta0: float = 0.1
    mu: float = 0.01
    tau: float = 100.0

    def begin(self, samples):
        self.v = [np.zeros(block.shape) for block in self.model.blocks]
        self.eta = self.eta0

    def step(self, x, target):
        grad = self.model.gradient(x, target)
        product = self.model.hessian_times(x, target, self.v)
        eta, keep = self.eta, 1 - 1 / self.tau
        self.eta = eta * np.exp(-self.mu * (flat(grad) @ flat(self.v)))
        for n, Hv in enumerate(product):
            self.model.blocks[n] -= eta * grad[n]
            self.v[n] = keep * self.v[n] - eta * (grad[n] + keep * Hv)
        self.rates = np.array([eta])

    def statistics(self):
        return {"trace": flat(self.v), "rate": np.array([self.eta])}
