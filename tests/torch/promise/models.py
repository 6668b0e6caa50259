"""Tiny models that return their loss, and batches for them: sound, poisoned, too small."""

from math import inf, nan

import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

__all__ = ["MODELS", "POISONS", "Generator", "Toy", "batch_for", "poisoned"]

_INPUTS, _WIDTH, _OUTPUTS = 3, 4, 2


class Toy(nn.Module):
    """A model whose output is its loss; `branch` takes part in it only while `branching`."""

    takes_numbers = True  # or else words
    loss_function = staticmethod(mse_loss)

    def __init__(self):
        super().__init__()
        self.body = self.make_body()
        self.head = nn.Linear(_WIDTH, _OUTPUTS)
        self.branch = nn.Linear(_WIDTH, _OUTPUTS)
        self.branching = True

    def make_body(self):
        raise NotImplementedError

    def learning(self):
        """Return the parameters that take part, frozen ones among them."""
        layers = (self.body, self.head, self.branch) if self.branching else (self.body, self.head)
        return [one for layer in layers for one in layer.parameters()]

    def outputs(self, x):
        if x.is_floating_point():
            x = x.to(self.head.weight.dtype)
        hidden = self.body(x)
        outputs = self.head(hidden)
        return outputs + self.branch(hidden) if self.branching else outputs

    def forward(self, x, y):
        outputs = self.outputs(x)
        return self.loss_function(outputs, y if y.dtype == torch.long else y.to(outputs.dtype))


class Tanh(Toy):
    loss_function = staticmethod(cross_entropy)

    def make_body(self):
        return nn.Sequential(nn.Linear(_INPUTS, _WIDTH), nn.Tanh())


class Dropout(Toy):
    def make_body(self):
        return nn.Sequential(nn.Linear(_INPUTS, _WIDTH), nn.ReLU(), nn.Dropout(0.3))


class BatchNorm(Toy):
    loss_function = staticmethod(cross_entropy)

    def make_body(self):
        return nn.Sequential(nn.Linear(_INPUTS, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.ReLU())


class Hinged(Toy):
    """A loss without curvature."""

    loss_function = staticmethod(l1_loss)

    def make_body(self):
        return nn.Sequential(nn.Linear(_INPUTS, _WIDTH), nn.ReLU())


class Words(Toy):
    takes_numbers = False
    loss_function = staticmethod(cross_entropy)

    def make_body(self):
        return nn.Sequential(nn.Embedding(6, _WIDTH), nn.Tanh())


class SparseWords(Words):
    def make_body(self):
        return nn.Sequential(nn.Embedding(6, _WIDTH, sparse=True), nn.Tanh())


class _Attention(nn.Module):
    """By hand, between the inputs of a sample, and so sharp that it saturates."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(1, _WIDTH) for _ in range(3))

    def forward(self, x):
        x = 3 * x.unsqueeze(-1)
        scores = 3 * self.queries(x) @ self.keys(x).transpose(1, 2)
        return (scores.softmax(-1) @ self.values(x)).mean(1)


class Attention(Toy):
    def make_body(self):
        return _Attention()


MODELS = {one.__name__: one for one in (Tanh, Dropout, BatchNorm, Hinged, Words, SparseWords, Attention)}


class Generator(nn.Module):
    """The other half of a GAN: from noise to what a `Tanh` takes for inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, _INPUTS)

    def forward(self, noise):
        return self.layer(noise)


def batch_for(model, generator, size=8):
    """Draw inputs and targets."""
    if model.takes_numbers:
        x = torch.randn(size, _INPUTS, generator=generator)
    else:
        x = torch.randint(0, 6, (size,), generator=generator)
    if model.loss_function is cross_entropy:
        return x, torch.randint(0, _OUTPUTS, (size,), generator=generator)
    return x, torch.randn(size, _OUTPUTS, generator=generator)


POISONS = ("nan input", "inf input", "huge input", "nan loss", "inf loss", "nan gradient")


def poisoned(kind, model, x, y):
    """Return the closure of a loss with something wrong in it."""
    if kind.endswith("input") and not model.takes_numbers:
        kind = "nan loss"
    if kind.endswith("input"):
        x = x.clone()
        x[0] = {"nan input": nan, "inf input": inf, "huge input": 1e25}[kind]

    def loss():
        if kind == "nan gradient":  # the slope of a root at zero is infinite, and then times zero
            return model(x, y) + (model.head.weight * 0).sqrt().sum()
        return model(x, y) + {"nan loss": nan, "inf loss": inf}.get(kind, 0.0)

    return loss
