"""A small classifier for the measuring form, its batches, and steps by `minimize`."""

import torch
import torch.nn.functional as F
from torch import nn

from pesky.torch import VSGD


def robust(model, **settings):
    return VSGD(model.parameters(), dialect="robust", **settings)


def mlp(inputs=8, outputs=3, width=16):
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))


def classes(count, seed=0):
    """Batches of 32 with labels that a small network can learn."""
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(8, 3, generator=generator)
    for _ in range(count):
        x = torch.randn(32, 8, generator=generator)
        yield x, (x @ teacher).argmax(1)


def train(optimizer, model, batches, loss_of=F.cross_entropy, factor=1.0):
    losses = []
    for x, y in batches:
        losses.append(optimizer.minimize(lambda x=x, y=y: factor * loss_of(model(x), y)).item())
    return losses


def values(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()
