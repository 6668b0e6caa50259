"""How the state machine begins, and what its rules are written with."""

import os

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pesky.torch import VSGD
from tests.torch.promise.models import MODELS, batch_for
from tests.torch.promise.watching import Subject, Watch

__all__ = ["WAYS", "Beginning", "case", "few", "layers"]

WAYS = ("minimize", "backward", "again", "watch")
LAYERS = ("body", "head", "branch")

few = st.integers(1, 5)
layers = st.sampled_from(LAYERS)


def case(**strategies):
    """A rule that can be switched off by its name, to see what faults are behind one that is known."""

    def decorate(function):
        allowed = precondition(lambda self: function.__name__ not in self.off)
        return rule(**strategies)(allowed(function))

    return decorate


class Beginning(RuleBasedStateMachine):
    """A model, an optimizer, a way to call it and a watch over them: what every rule begins with."""

    off = frozenset(os.environ.get("PESKY_PROMISE_OFF", "").split(","))  # of rules and checks

    @initialize(
        name=st.sampled_from(list(MODELS)),
        way=st.sampled_from(WAYS),
        dialect=st.sampled_from(["robust", "robust", "robust", "paper"]),
        granularity=st.sampled_from(["element", "block", "global"]),
        decay=st.sampled_from([0.0, 0.0, 0.1]),
        decoupled=st.booleans(),
        init_batches=st.sampled_from([1, 2, 10]),
        every=st.sampled_from([None, None, 1, 3]),
        seed=st.integers(0, 2**16),
    )
    def start(self, name, way, dialect, granularity, decay, decoupled, init_batches, every, seed):
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.watch = Watch(self.off)
        settings = {
            "dialect": dialect,
            "granularity": "element" if name == "SparseWords" else granularity,
            "weight_decay": decay,
            "decoupled_weight_decay": decoupled and name != "SparseWords",
            "init_batches": init_batches,
            "curvature_every": every,
        }
        model = MODELS[name]()
        self.subject = Subject(model, VSGD(model.parameters(), **settings), way, settings)
        self.watch.subjects = [self.subject]
        self.gan = None
        self.saved = None
        self.is_recast = False  # whether parameters have got another type or layout in memory

    # --- Shorthands --------------------------------------------------------------------------------

    @property
    def model(self):
        return self.subject.model

    @property
    def optimizer(self):
        return self.subject.optimizer

    def batch(self, size=8):
        return batch_for(self.model, self.generator, size)

    def loss(self, size=8):
        x, y = self.batch(size)
        return lambda: self.model(x, y)

    def take(self, closure, **settings):
        """Take a step; return what came of it."""
        subject = self.subject
        between = settings.pop("between", lambda: None)
        return self.watch.call(
            subject, lambda seeing: subject.step(seeing(closure), between), **settings
        )

    def do(self, action, **settings):
        """Call something that is not a step."""
        return self.watch.call(self.subject, lambda seeing: action(), is_step=False, **settings)
