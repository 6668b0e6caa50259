"""Torch twins of the online engine's networks, and small data."""

import numpy as np
import torch
from torch import nn

from pesky.online import Network
from pesky.online.learner import samples_of

SHAPES = {"M0": (20, 5), "M1": (20, 8, 5)}


def torch_twin(network, dtype=torch.float32):
    """The same network with the same parameters."""
    layers = []
    for weights, biases in network.layers():
        layer = nn.Linear(weights.shape[1], weights.shape[0], dtype=dtype)
        layer.weight.data = torch.tensor(weights, dtype=dtype)
        layer.bias.data = torch.tensor(biases, dtype=dtype)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def classes(sizes, samples=200, seed=0):
    """Inputs and labels that a network of these sizes can learn in part."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(samples, sizes[0])).astype(np.float32)
    scores = inputs @ rng.normal(size=(sizes[0], sizes[-1])) + rng.normal(size=(samples, sizes[-1]))
    return inputs, scores.argmax(axis=1)


def split(model, l2):
    """Parameter groups as the engine has them: L2 on weights only."""
    weights = [p for p in model.parameters() if p.dim() == 2]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": weights, "weight_decay": l2}, {"params": biases}]


def flat(model):
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def one_by_one(inputs, labels, dtype=torch.float32):
    """Batches of one."""
    for x, y in zip(inputs, labels, strict=True):
        yield torch.tensor(x, dtype=dtype)[None], torch.tensor([y])


__all__ = ["SHAPES", "Network", "classes", "flat", "one_by_one", "samples_of", "split", "torch_twin"]
