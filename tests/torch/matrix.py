"""Every form, every way to call it, every kind of parameters: one list, and what cannot be combined.

A new form, way or kind is one line in `FORMS`, `WAYS` or `KINDS`; `test_matrix.py` then runs it with all
the others. A line of `IN_ONE_WAY` is a kind that is run in one way of each form. What cannot be combined
is a line with its reason in `IMPOSSIBLE`.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from pesky.torch import VSGD
from tests.torch.loops import batches, model, parameters, through_file

INITIAL = 3  # batches before anything moves: few, so that short runs are enough

# --- Forms ----------------------------------------------------------------------------------------


class Form(NamedTuple):
    settings: dict[str, Any]  # of the optimizer
    steps: int  # after which it has clearly begun to learn
    many: int  # after which it has learnt


FORMS = {
    "paper": Form({"dialect": "paper"}, 30, 400),
    "measuring": Form({}, 30, 400),
    "following": Form({}, 100, 900),  # the scale takes its time
}

# --- Ways to call it --------------------------------------------------------------------------------


def by_minimize(optimizer, loss):
    return optimizer.minimize(loss)


def by_backward(optimizer, loss, repeats=False):
    optimizer.zero_grad()
    value = loss()
    optimizer.backward(value, again=loss if repeats else None)
    optimizer.step()
    return value.detach()


def by_step(optimizer, loss, repeats=False):
    def closure():
        optimizer.zero_grad()
        value = loss()
        optimizer.backward(value, again=loss if repeats else None)
        return value

    return optimizer.step(closure).detach()


def by_watch(optimizer, loss):
    optimizer.zero_grad()
    value = loss()
    value.backward()
    optimizer.step()
    return value.detach()


class Way(NamedTuple):
    step: Callable[..., Any]  # one step of an optimizer on what computes a loss; returns the loss
    watches: str = ""  # what the optimizer watches: the "model", or a "loss" alone


WAYS = {
    "minimize": Way(by_minimize),
    "backward": Way(by_backward),
    "again": Way(partial(by_backward, repeats=True)),
    "watch": Way(by_watch, watches="model"),
    "watch loss": Way(by_watch, watches="loss"),
    "step": Way(by_step),
    "step again": Way(partial(by_step, repeats=True)),
}

# --- Kinds of parameters ----------------------------------------------------------------------------


class Classifier(nn.Module):
    """A network that returns its loss; half precision is for the network only."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        x = x.to(next(self.net.parameters()).dtype) if x.is_floating_point() else x
        outputs = self.net(x)
        return cross_entropy(outputs.float() if outputs.element_size() < 4 else outputs, y)


class Line(nn.Module):
    """A scale and a shift, both of no dimension."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.tensor(value)) for value in (0.1, -1.0))

    def forward(self, x, y):
        return mse_loss(self.scale * x[:, 0] + self.shift, 2 * x[:, 0] + 1 + 0.1 * y)


def dense(dtype=torch.float32):
    return Classifier(model(dtype=dtype))


def strided():
    made = dense()
    weight = made.net[0].weight
    weight.data = weight.data.t().contiguous().t()
    assert not weight.is_contiguous()
    return made


def network(*between):
    torch.manual_seed(0)
    return Classifier(nn.Sequential(nn.Linear(10, 16), nn.Tanh(), *between, nn.Linear(16, 3)))


def batch_norm():
    return network(nn.BatchNorm1d(16))


def dropout():
    return network(nn.Dropout(0.2))


def half_frozen():
    made = dense()
    made.net[0].requires_grad_(False)
    return made


def sparse():
    torch.manual_seed(0)
    return Classifier(nn.Sequential(nn.Embedding(12, 8, sparse=True), nn.Linear(8, 3)))


def numbers(steps, seed=1):
    """The three classes of `loops.data`."""
    return batches(steps, size=16, seed=seed)


def words(steps, size=16, seed=1):
    """Words of the first half of the dictionary, each with a class of its own."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(0, 6, (size,), generator=generator)
        yield chosen, chosen % 3


def one_group(made):
    return made.parameters()


def two_groups(made):
    first, _, last = made.net
    return [
        {"params": first.parameters(), "granularity": "block", "weight_decay": 0.01},
        {"params": last.parameters(), "lr": 0.5, "curvature_floor": 1e-3},
    ]


def nothing(made):
    return []


def first_layer(made):
    return list(made.net[0].parameters())


@dataclass(frozen=True)
class Kind:
    make: Callable[[], nn.Module]  # a model that returns its loss
    settings: dict[str, Any] = field(default_factory=dict)  # of the optimizer
    groups: Callable[[Any], Any] = one_group
    batches: Callable[..., Any] = numbers
    resting: Callable[[Any], list[torch.Tensor]] = nothing  # what no gradient ever reaches
    enough: float = 0.5  # the loss after many steps, below log 3, which is that of a guess


KINDS = {
    "float32": Kind(dense),
    "float64": Kind(partial(dense, torch.float64)),
    "bfloat16": Kind(partial(dense, torch.bfloat16)),
    "strided": Kind(strided),
    "batch norm": Kind(batch_norm),
    "dropout": Kind(dropout),
    "sparse": Kind(sparse, batches=words, resting=lambda made: [made.net[0].weight[6:]], enough=0.1),
    "scalar": Kind(Line, enough=0.1),
    "half frozen": Kind(half_frozen, resting=first_layer, enough=0.75),
    "two groups": Kind(dense, groups=two_groups, enough=0.75),
}
# Kinds and settings to which the way makes no difference: of each form they are run in one.
IN_ONE_WAY = {
    "float16": Kind(partial(dense, torch.float16)),
    "half frozen, global": Kind(
        half_frozen, {"granularity": "global", "curvature_every": 3}, resting=first_layer, enough=0.75
    ),
    "block": Kind(dense, {"granularity": "block"}, enough=0.75),
    "global": Kind(dense, {"granularity": "global"}, enough=0.75),
    "half lr": Kind(dense, {"lr": 0.5}, enough=0.6),
    "decay": Kind(dense, {"weight_decay": 0.01}, enough=0.75),
    "decoupled decay": Kind(dense, {"weight_decay": 0.1, "decoupled_weight_decay": True}, enough=0.75),
    "every 3": Kind(dense, {"curvature_every": 3}),
    "hutchinson": Kind(dense, {"curvature": "hutchinson"}, enough=0.6),
    "finite differences": Kind(dense, {"curvature": "finite-difference"}, enough=0.6),
}

ALL_KINDS = KINDS | IN_ONE_WAY

# --- Combinations -----------------------------------------------------------------------------------


class Reason(NamedTuple):
    """What cannot be combined, and why; None stands for all."""

    form: str | None
    way: str | None
    kind: str | None
    why: str

    def concerns(self, *names):
        return all(own is None or own == name for own, name in zip(self[:3], names, strict=True))


_ONCE = "a loss that is given once cannot be evaluated again"
_TWICE = "a loss that can be evaluated again is measured, not followed"
IMPOSSIBLE = [
    *(Reason("measuring", way, None, _ONCE) for way in ("backward", "watch loss")),
    *(
        Reason("following", way, None, _TWICE)
        for way in ("minimize", "again", "watch", "step", "step again")
    ),
    *(Reason(None, way, "finite differences", _ONCE) for way in ("backward", "watch loss")),
]
# A loss that was computed before `backward(loss, again=closure)` had dropout masks of its own.
OTHER_STEPS = [Reason("measuring", None, "dropout", "the closure draws other masks than the loss had")]


class Combination(NamedTuple):
    form: str
    way: str
    kind: str

    def __str__(self):
        return "-".join(self)


def is_possible(*names):
    return not any(reason.concerns(*names) for reason in IMPOSSIBLE)


def in_one_way(combinations):
    """The first way of each form and kind."""
    return list({(one.form, one.kind): one for one in reversed(combinations)}.values())[::-1]


def combined(kinds):
    return [Combination(*names) for names in product(FORMS, WAYS, kinds) if is_possible(*names)]


COMBINATIONS = [*combined(KINDS), *in_one_way(combined(IN_ONE_WAY))]
ONE_WAY = in_one_way(COMBINATIONS)  # for what takes long


class Run:
    """A model with an optimizer of one combination on it."""

    def __init__(self, combination, **settings):
        self.form, self.way, self.kind = (
            combination.form,
            WAYS[combination.way],
            ALL_KINDS[combination.kind],
        )
        self.settings = {
            "init_batches": INITIAL,
            **FORMS[self.form].settings,
            **self.kind.settings,
            **settings,
        }
        self._begin(*self.new())

    def new(self):
        """A model and an optimizer that know nothing yet."""
        made = self.kind.make()
        return made, VSGD(self.kind.groups(made), **self.settings)

    def _begin(self, made, optimizer):
        self.model, self.optimizer = made, optimizer
        self.last = nn.Identity()  # what the loss goes through
        watched = {"model": made, "loss": self.last}.get(self.way.watches)
        self.handle = None if watched is None else optimizer.watch(watched)

    def train(self, steps, seed=1, factor=1.0):
        """Take steps; return their losses."""
        torch.manual_seed(seed)
        losses = [
            self.way.step(self.optimizer, lambda x=x, y=y: self.last(factor * self.model(x, y))).item()
            for x, y in self.kind.batches(steps, seed=seed)
        ]
        self.generator = torch.get_rng_state()
        return losses

    def poison(self, factor):
        """Take a step on a batch whose loss is not finite."""
        self.train(1, seed=7, factor=factor)

    def loss(self):
        """The mean loss of other batches, of the model as it is used."""
        self.model.eval()
        with torch.no_grad():
            losses = [self.model(x, y).item() for x, y in self.kind.batches(20, seed=9)]
        self.model.train()
        return sum(losses) / len(losses)

    def parameters(self):
        return parameters(self.model)

    def iterate(self):
        """Where steps begin; `minimize` shows the average where that is better."""
        states = [self.optimizer.state[one] for one in self.model.parameters()]
        shown = zip(states, self.model.parameters(), strict=True)
        return [state.get("iterate", one).detach().to(one.dtype, copy=True) for state, one in shown]

    def resumed(self):
        """A run that goes on from files."""
        other = copy.copy(self)
        made, optimizer = self.new()
        with torch.no_grad():
            for one in made.parameters():
                one.add_(1)  # so that nothing but the checkpoint can make it alike
        made.load_state_dict(through_file(self.model.state_dict()))
        optimizer.load_state_dict(through_file(self.optimizer.state_dict()))
        other._begin(made, optimizer)
        return other

    def copied(self, way):
        """A run that goes on from a copy."""
        other = copy.copy(self)
        pair = (self.model, self.optimizer)
        other._begin(*(copy.deepcopy(pair) if way == "deepcopy" else pickle.loads(pickle.dumps(pair))))
        return other
