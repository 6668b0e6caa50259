"""A slow, obvious twin of the robust form of vSGD: float64, plain NumPy, after docs/theory.md."""

import math
from dataclasses import dataclass, field

import numpy as np

from tests.online.reference import Twin, flat, memory_after, ratio_of

EPS = float(np.finfo(np.float32).eps)  # of the engine's losses


@dataclass
class Mean:
    """E[...] over the last `longest` samples; of fewer, their plain mean."""

    value: float = 0.0
    count: float = 0.0

    def add(self, sample, longest):
        self.count = self.count * (1 - 1 / longest) + 1
        self.value += (sample - self.value) / self.count


def random_signs(count, seed):
    """SplitMix64 in Python's own integers: the top bit of each number is a sign."""
    golden, modulus = 0x9E3779B97F4A7C15, 2**64

    def mixed(number):
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % modulus
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB % modulus
        return number ^ (number >> 31)

    start = mixed(seed * golden % modulus)
    numbers = (mixed((start + n * golden) % modulus) for n in range(1, count + 1))
    return np.array([1.0 if number >= modulus // 2 else -1.0 for number in numbers])


def like(blocks, values):
    """Cut flat values into blocks of these shapes."""
    ends = np.cumsum([block.size for block in blocks])[:-1]
    return [part.reshape(b.shape) for part, b in zip(np.split(values, ends), blocks, strict=True)]


@dataclass
class TwinRobust(Twin):
    floor: float = 0.0
    every: float = math.inf
    initial: int = 0
    measured: tuple | None = None  # moves and accidents before the last move that measured
    slope: Mean = field(default_factory=Mean)
    bend: Mean = field(default_factory=Mean)
    lead: Mean = field(default_factory=Mean)
    lead_square: Mean = field(default_factory=Mean)
    scale: float | None = None
    caution: float = 1.0
    moves: int = 0
    shortened: int = 0
    loss: Mean = field(default_factory=Mean)
    loss_square: Mean = field(default_factory=Mean)
    undoable: bool = False
    restored: int = 0

    def begin(self, samples):
        self.level_squares = [Mean() for _ in self.model.blocks]
        for x, target in samples:
            self.measure(x, target, math.inf)
            self.initial += 1
        gradients = [self.model.gradient(x, target) for x, target in samples]
        self.g = [np.mean(parts, axis=0) for parts in zip(*gradients, strict=True)]
        self.v = [np.mean(np.square(parts), axis=0) for parts in zip(*gradients, strict=True)]
        self.tau = [max(2.0, len(samples)) for _ in self.g]
        self.average = [block.copy() for block in self.model.blocks]

    def step(self, x, target):
        self.t += 1
        if self.went_wrong(x, target):
            self.model.blocks[:] = [average.copy() for average in self.average]
            self.undoable = False
            self.restored += 1
            self.scale /= 2
            self.rates = self.rates / 2
            self.bend.value = self.slope.value / self.scale
            return
        if self.is_due():
            self.measure(x, target, 5)
            self.measured = self.moves, self.shortened + self.restored
        gradient = self.model.gradient(x, target)
        typical = [v.mean() for v in self.v]
        self.learn(gradient)
        levels = [max(math.sqrt(square.value), self.floor) for square in self.level_squares]
        h = [
            level * np.sqrt(np.maximum(ratio_of(v, mean), 1))
            for level, v, mean in zip(levels, self.v, typical, strict=True)
        ]
        ratios = [ratio_of(g**2, v) for g, v in zip(self.g, self.v, strict=True)]
        eta = [ratio_of(ratio, part) for ratio, part in zip(ratios, h, strict=True)]
        p = [rate * g for rate, g in zip(eta, gradient, strict=True)]
        slope = flat(gradient) @ flat(p)
        if slope > 0:
            self.move(p, slope, x, target)
        self.rates = self.caution * (self.scale or 0.0) * flat(eta)

    def is_due(self):
        """Whether 5 % of the moves have gone by, or fewer, or a step was too long."""
        if self.measured is None:
            return True
        moves, accidents = self.measured
        interval = max(1, min(self.every, int(0.05 * self.moves)))
        return self.moves - moves >= interval or self.shortened + self.restored > accidents

    def measure(self, x, target, longest):
        z = like(self.model.blocks, random_signs(self.model.flat.size, self.initial + self.moves))
        product = self.model.hessian_times(x, target, z)
        for square, Hz in zip(self.level_squares, product, strict=True):
            square.add(np.mean(Hz**2), longest)

    def went_wrong(self, x, target):
        """Whether this sample's loss is far above the usual, and the average is free of most of that."""
        loss = self.model.loss(x, target)
        spread = math.sqrt(max(0.0, self.loss_square.value - self.loss.value**2))
        gross, rise = self.loss.value + 10 * spread, loss - self.loss.value
        fall = loss - self.model.loss(x, target, self.average)
        if self.undoable and min(rise, fall) > gross and fall > rise / 2:
            return True
        self.loss.add(loss, 20 + 0.05 * self.moves)
        self.loss_square.add(loss**2, 20 + 0.05 * self.moves)
        return False

    def learn(self, gradient):
        for n, grad in enumerate(gradient):
            w = 1 / self.tau[n]
            self.g[n] = (1 - w) * self.g[n] + w * grad
            self.v[n] = (1 - w) * self.v[n] + w * grad**2
            self.tau[n] = memory_after(self.tau[n], ratio_of((self.g[n] ** 2).sum(), self.v[n].sum()))

    def move(self, p, slope, x, target):
        first = self.model.objective(x, target)

        def after(scale):
            return [block - scale * step for block, step in zip(self.model.blocks, p, strict=True)]

        def loss_after(scale):
            return self.model.objective(x, target, after(scale))

        def bend_at(scale):
            return max(0.0, 2 * (loss_after(scale) - first + scale * slope) / scale**2)

        memory = 20 + 0.05 * self.moves
        if self.scale is None:
            self.scale = self.first_scale(slope, first, loss_after, bend_at)
            self.slope.add(slope, memory)
            self.bend.add(self.slope.value / self.scale, memory)
        else:
            longest = 2 * self.scale
            self.scale = self.slope.value / max(self.bend.value, self.slope.value / longest)
            self.slope.add(slope, memory)
        if self.moves >= 20 and self.moves % 2 == 0:
            self.compare(first - self.model.objective(x, target, self.average), memory)
        scale = self.scale
        while loss_after(scale) - first > scale * slope and scale > self.scale / 4**8:
            scale = min(scale / 4, max(slope / bend_at(scale), scale / 100))
        if scale < self.scale:
            self.shortened += 1
            self.scale, self.bend.value = scale, self.slope.value / scale
        else:
            noise = 4 * EPS * (abs(loss_after(scale)) + abs(first))
            if loss_after(scale) - first + scale * slope > noise or bend_at(scale) < self.bend.value:
                self.bend.add(bend_at(scale), memory)
        self.moves += 1
        for average, block in zip(self.average, self.model.blocks, strict=True):
            average += (block - average) / (0.2 * self.moves + 1)
        self.model.blocks[:] = after(self.caution * self.scale)
        self.undoable = True

    def first_scale(self, slope, first, loss_after, bend_at):
        shortest = 1e-3
        while loss_after(shortest) >= first:
            shortest /= 10
        longest = best = shortest
        while longest < 1 and loss_after(longest) <= loss_after(best):
            best, longest = longest, 10 * longest
        near, far = (slope / max(slope, bend_at(scale)) for scale in (shortest, longest))
        return min(near, max(best, far))

    def compare(self, lead, memory):
        self.lead.add(lead, memory)
        self.lead_square.add(lead**2, memory)
        if self.lead_square.value > 0:
            z = self.lead.value / math.sqrt(self.lead_square.value)
            w = 20 + 0.2 * self.moves
            self.caution = min(1.0, self.caution * (w - z) / (w + z))

    @property
    def visible(self):
        return flat(self.average) if self.lead.value > 0 else self.model.flat

    def statistics(self):
        return {
            "mean_gradient": flat(self.g),
            "mean_square": flat(self.v),
            "level_square": np.array([square.value for square in self.level_squares]),
            "typical_square": np.array([v.mean() for v in self.v]),
            "memory": np.array(self.tau),
            "iterate": self.model.flat,
            "average": flat(self.average),
        }
