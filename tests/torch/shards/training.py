"""What processes that train together do, and one process alone does with all of each batch."""

import warnings
from typing import NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, l1_loss
from torch.nn.parallel import DistributedDataParallel

from pesky.torch import VSGD

SAMPLES = 8  # a batch, of all processes together
BEGINNING = {"init_batches": 4}
PAPER = {"dialect": "paper", **BEGINNING}


class Case(NamedTuple):
    """How an optimizer is made and called."""

    settings: dict
    call: str = "minimize"
    model: str = "mlp"
    lr: float = 1.0
    steps: int = 20
    is_flat: bool = False  # whether the loss is linear in what the model computes


CASES = {
    "measuring": Case(BEGINNING, steps=50),  # so many that the average is seen, too
    "measuring, words": Case(BEGINNING, model="words"),
    "measuring, by hand": Case(BEGINNING, "again", steps=30),
    "measuring, block": Case({"granularity": "block", **BEGINNING}),
    "measuring, global": Case({"granularity": "global", **BEGINNING}),
    "measuring, L2": Case({"weight_decay": 0.01, **BEGINNING}),
    "measuring, decoupled": Case({"weight_decay": 0.1, "decoupled_weight_decay": True, **BEGINNING}),
    "measuring, bbprop": Case({"curvature": "bbprop", **BEGINNING}),
    "measuring, hutchinson": Case({"curvature": "hutchinson", **BEGINNING}),
    "following": Case(BEGINNING, "backward"),
    "following, words": Case(BEGINNING, "backward", "words"),
    "following, half": Case(BEGINNING, "backward", lr=0.5),
    "following, decoupled": Case(
        {"weight_decay": 0.1, "decoupled_weight_decay": True, **BEGINNING}, "backward"
    ),
    "following, block": Case({"granularity": "block", **BEGINNING}, "backward"),
    "following, global": Case({"granularity": "global", **BEGINNING}, "backward"),
    "measuring, flat": Case(BEGINNING, is_flat=True),
    "following, flat": Case(BEGINNING, "backward", is_flat=True),
    "paper, flat": Case(PAPER, is_flat=True),
    "paper": Case(PAPER),
    "paper, words": Case(PAPER, model="words"),
    "paper, block": Case({"granularity": "block", **PAPER}),
    "paper, global": Case({"granularity": "global", **PAPER}),
    "paper, not even": Case({"even_start": False, "slow_start": 30.0, **PAPER}, "backward"),
    "paper, decoupled": Case({"weight_decay": 0.1, "decoupled_weight_decay": True, **PAPER}),
    "paper, L2": Case({"weight_decay": 0.01, **PAPER}),
}


class Words(nn.Module):
    """An embedding, a layer norm, and a residual connection, of sizes that do not divide evenly."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, words):
        found = self.embedding(words)
        found = found + torch.tanh(self.inner(self.norm(found)))
        return self.head(found.mean(1))


def model_of(name):
    """Return the model, in float64: small differences of losses and gradients amplify rounding."""
    torch.manual_seed(0)
    if name == "words":
        return Words().double()
    return nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)).double()


def batches(model, steps):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(SAMPLES, 10, generator=generator, dtype=torch.float64)
        y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long() + (x[:, 3] > 0.5).long()
        yield (x.mul(4).long() % 11 if model == "words" else x), y


def spread(net, how):
    """Return a model whose processes train together in one of the ways that torch has."""
    if how == "ddp":
        return DistributedDataParallel(net)
    count = distributed.get_world_size()
    if how == "hsdp":
        mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("copies", "parts"))
    else:
        mesh = init_device_mesh("cpu", (count,))
    for child in net.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def optimizer_of(net, case):
    return VSGD(net.parameters(), lr=case.lr, **case.settings)


warnings.filterwarnings("ignore", message=".*no curvature of its own")
warnings.filterwarnings("ignore", message=".*returned a view tensor")


def step(net, optimizer, case, x, y, factor=1.0):
    """Take a step on this process's part of a batch."""

    def loss():
        found = net(x)
        if case.is_flat:
            return factor * l1_loss(found[:, 0], 10.0 * y)
        return factor * cross_entropy(found, y)

    if case.call == "minimize":
        optimizer.minimize(loss)
        return
    optimizer.zero_grad()
    if case.call == "again":
        optimizer.backward(loss(), again=loss)
    else:
        optimizer.backward(loss())
    optimizer.step()


def train(net, optimizer, case, mine, first=0, last=None, spoil=None):
    """Take the steps from `first` to `last`; in step `spoil` this process has a loss that is NaN."""
    for number, (x, y) in enumerate(batches(case.model, case.steps if last is None else last)):
        if number >= first:
            factor = float("nan") if number == spoil else 1.0
            step(net, optimizer, case, x[mine], y[mine], factor)


def whole(net):
    """Return all parameters, gathered."""
    return [
        (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone()
        for one in net.parameters()
    ]


def found(net, optimizer):
    """Return what is to be the same for all."""
    numbers = {name: value for name, value in optimizer.counters.items() if name != "portable"}
    return {
        "parameters": whole(net),
        "counters": numbers,
        "scale": optimizer.collective.scale,
        "caution": optimizer.collective.caution,
    }
