"""A small problem that every loop of the tests can train on."""

import io

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pesky.torch import VSGD

DIALECTS = ("paper", "robust")
FORMS = ("paper", "measuring", "following")


def data(samples=400, seed=0):
    """Three classes in ten dimensions, told apart by a smooth boundary."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 10, generator=generator)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long() + (x[:, 3] > 0.5).long()


def model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def convolutional():
    """Another model for the same problem, whose parameters can be laid out in several ways."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 5)), nn.Conv2d(1, 6, 2), nn.Tanh(), nn.Conv2d(6, 4, (1, 2)), nn.Flatten()
    )


def batches(steps, size=8, seed=1):
    x, y = data()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(0, len(x), (size,), generator=generator)
        yield x[chosen], y[chosen]


def paper(net, **settings):
    return VSGD(net.parameters(), dialect="paper", **settings)


def train(net, optimizer, steps=30, seed=1, dtype=torch.float32):
    """Take steps by `minimize`."""
    for x, y in batches(steps, seed=seed):
        optimizer.minimize(lambda x=x, y=y: cross_entropy(net(x.to(dtype)).float(), y))


def train_by_backward(net, optimizer, steps=30, seed=1, factor=1.0):
    """Take steps without a second evaluation."""
    for x, y in batches(steps, seed=seed):
        optimizer.zero_grad()
        optimizer.backward(factor * cross_entropy(net(x), y))
        optimizer.step()


def train_in_form(form, net, optimizer, steps=30, seed=1):
    """Take steps the way that leads to one of `FORMS`."""
    (train_by_backward if form == "following" else train)(net, optimizer, steps, seed)


def through_file(state):
    """Save and load."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def step_in_form(form, optimizer, loss):
    """Take one step on a loss the way that leads to one of the robust forms."""
    if form == "measuring":
        optimizer.minimize(loss)
    else:
        optimizer.zero_grad()
        optimizer.backward(loss())
        optimizer.step()


def dialect_of(form):
    return "paper" if form == "paper" else "robust"


def parameters(net):
    return [p.detach().clone() for p in net.parameters()]


def same(ones, others):
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def close(ones, others, **tolerances):
    for a, b in zip(ones, others, strict=True):
        torch.testing.assert_close(a, b, **tolerances)


def accuracy(net, samples=400):
    x, y = data(samples)
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()
