"""One small task in plain loops that look like those of trainers, and by `minimize`."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from pesky.torch import VSGD
from tests.torch.robust import classes


class WithLoss(nn.Module):
    """As the models of Hugging Face: its output holds the loss."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        return {"loss": cross_entropy(self.net(x), labels)}


class Task:
    """A network in float64, an optimizer on it, and batches."""

    def __init__(self, *between, **settings):
        torch.manual_seed(0)
        layers = [nn.Linear(8, 16), *between, nn.Tanh(), nn.Linear(16, 3)]
        self.net = nn.Sequential(*layers).double()
        self.whole = WithLoss(self.net)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = VSGD(self.net.parameters(), **settings)

    def train(self, way, steps=60, seed=0):
        """Take steps in one of `WAYS`."""
        torch.manual_seed(1 + seed)
        for x, y in classes(steps, seed=seed):
            WAYS[way](self, x.double(), y)
        return self

    @property
    def iterate(self):
        states = self.optimizer.state
        return [states[one].get("iterate", one).detach().clone() for one in self.net.parameters()]

    @property
    def average(self):
        return [self.optimizer.state[one]["average"].clone() for one in self.net.parameters()]


def by_minimize(task, x, y):
    task.optimizer.minimize(lambda: cross_entropy(task.net(x), y))


def by_backward(task, loss):
    task.optimizer.zero_grad()
    loss().backward()
    task.optimizer.step()


def by_model(task, x, y):
    by_backward(task, lambda: task.whole(x, labels=y)["loss"])


def by_pair(task, x, y):
    by_backward(task, lambda: task.criterion(task.net(x), y))


def by_closure(task, x, y):
    def closure():
        task.optimizer.zero_grad()
        loss = cross_entropy(task.net(x), y)
        loss.backward()
        return loss

    task.optimizer.step(closure)


def squared(task, x, y):
    return (task.net(x) - one_hot(y, 3)).square().mean()


def by_minimize_squared(task, x, y):
    task.optimizer.minimize(lambda: squared(task, x, y))


def by_functional(task, x, y):
    task.optimizer.zero_grad()
    task.optimizer.backward(squared(task, x, y))
    task.optimizer.step()


WAYS = {
    "minimize": by_minimize,
    "model": by_model,
    "pair": by_pair,
    "closure": by_closure,
    "minimize squared": by_minimize_squared,
    "functional": by_functional,
}


def watched(way, *between, **settings):
    """A task that is watched as a way needs it."""
    task = Task(*between, **settings)
    if way == "model":
        task.optimizer.watch(task.whole)
    elif way == "pair":
        task.optimizer.watch(task.net, task.criterion)
    elif way == "functional":
        task.optimizer.watch(task.net)
    return task
