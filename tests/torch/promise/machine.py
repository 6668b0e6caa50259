"""A state machine that calls VSGD as users do, one rule for each thing that they may do."""

import copy
import pickle
from itertools import count
from math import inf, nan

import torch
from hypothesis import strategies as st
from hypothesis.stateful import precondition

from pesky.torch import VSGD
from tests.torch.loops import through_file
from tests.torch.promise.beginning import WAYS, case, few
from tests.torch.promise.interrupts import interrupted
from tests.torch.promise.models import MODELS, Generator
from tests.torch.promise.training import Training
from tests.torch.promise.watching import Own, Subject, same_bits

__all__ = ["PromiseMachine"]


class PromiseMachine(Training):
    """Whatever is called: what was finite is finite, what is frozen stays, what was not done is said."""

    # --- Exceptions --------------------------------------------------------------------------------

    @case(
        kind=st.sampled_from([Own, KeyboardInterrupt]),
        at=st.integers(1, 6),
        count=st.sampled_from([1, 1, 12]),
    )
    def raise_in_the_closure(self, kind, at, count):
        for _ in range(count):
            self.take(_raising(kind, at, self.loss()), own=kind)

    @case(kind=st.sampled_from([Own, KeyboardInterrupt]), at=st.integers(1, 6))
    def raise_in_a_hook(self, kind, at):
        calls = 0

        def hook(module, inputs, output):
            nonlocal calls
            calls += 1
            if calls == at:
                raise kind("in a hook")

        handle = self.model.head.register_forward_hook(hook)
        # A watched model is called again by the optimizer itself, outside of the closure.
        self.take(self.loss(), own=kind, also=(kind,))
        handle.remove()

    @case(layer=st.sampled_from(["head", "branch"]))
    def raise_in_the_backward_pass(self, layer):
        weight = getattr(self.model, layer).weight
        if not weight.requires_grad:
            return

        def hook(gradient):
            raise Own("in the backward pass")

        handle = weight.register_hook(hook)
        self.take(self.loss(), also=(Own,))
        handle.remove()

    @case(at=st.integers(1, 1000))
    def interrupt_anywhere(self, at):
        lines = count(1)

        def action(seeing):
            closure = seeing(self.loss())
            interrupted(lambda: self.subject.step(closure), lambda place: next(lines) == at)

        self.watch.call(self.subject, action, is_step=False)

    # --- Copies and checkpoints --------------------------------------------------------------------

    @case(how=st.sampled_from(["deepcopy", "pickle", "state", "file"]))
    def go_on_with_a_copy(self, how):
        old = self.subject
        pair = (old.model, old.optimizer)
        model, optimizer = pickle.loads(pickle.dumps(pair)) if how == "pickle" else copy.deepcopy(pair)
        if how in ("state", "file"):
            groups = [{"params": group["params"]} for group in optimizer.param_groups]
            optimizer = VSGD(groups, **old.settings)
            state = old.optimizer.state_dict()
            optimizer.load_state_dict(through_file(state) if how == "file" else state)
        new = Subject(model, optimizer, old.way, old.settings)
        new.skips, new.said, new.is_mixed = old.skips, list(old.said), old.is_mixed
        self.watch.subjects = [new if one is old else one for one in self.watch.subjects]
        self.watch.subjects.append(old)
        x, y = self.batch()
        randomness = torch.get_rng_state()
        self.take(lambda: old.model(x, y))
        torch.set_rng_state(randomness)
        self.subject = new
        self.take(lambda: new.model(x, y))
        self.watch.subjects.remove(old)
        # Averages take a parameter's type and layout when they are loaded, and then round differently.
        alike = all(map(same_bits, old.model.parameters(), new.model.parameters()))
        self.watch.check("copies", alike or self.is_recast, "a copy goes on in another way:", how)

    @case()
    def save(self):
        self.saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    @precondition(lambda self: self.saved is not None)
    @case(with_model=st.booleans())
    def go_back_to_what_was_saved(self, with_model):
        if with_model:
            self.model.load_state_dict(self.saved[0])
        if len(self.saved[1]["param_groups"]) == len(self.optimizer.param_groups):
            self.do(lambda: self.optimizer.load_state_dict(self.saved[1]))

    @case(whose=st.sampled_from(["Adam", "SGD", "another shape", "fewer parameters", "no dictionary"]))
    def load_what_is_not_ours(self, whose):
        before = copy.deepcopy(self.optimizer.state_dict())
        foreign = _foreign_state(whose, self.subject)
        theirs = (ValueError,) if whose == "fewer parameters" else ()  # which torch says well enough
        outcome = self.do(lambda: self.optimizer.load_state_dict(foreign), also=theirs)
        said = outcome.error is not None or any("another optimizer" in one for one in self.subject.said)
        self.watch.check("foreign states", said, whose, "was loaded without a word")
        after = self.optimizer.state_dict()
        self.watch.check("foreign states", _same(before, after), whose, "changed something")

    # --- Settings ----------------------------------------------------------------------------------

    @case(lr=st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.0, 1.0, 3.0, 100.0]), as_tensor=st.booleans())
    def set_the_rate(self, lr, as_tensor):
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(lr) if as_tensor else lr

    @case(decay=st.sampled_from([0.0, 0.1, 10.0]))
    def set_the_decay(self, decay):
        for group in self.optimizer.param_groups:
            group["weight_decay"] = decay

    @case(
        name=st.sampled_from(["lr", "weight_decay"]),
        value=st.sampled_from([nan, inf, -1.0]),
    )
    def set_nonsense(self, name, value):
        groups = self.optimizer.param_groups
        before = [group[name] for group in groups]
        for group in groups:
            group[name] = value
        self.take(self.loss())
        for group, own in zip(groups, before, strict=True):
            group[name] = own

    @case()
    def step_a_scheduler(self):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        if self.take(self.loss()).error is None:  # else torch says that no step came before
            scheduler.step()
            scheduler.step()

    @case()
    def explain(self):
        told = self.optimizer.explain()
        assert (told.steps, sum(told.skipped.values())) == self.subject.counts()
        assert str(told)
        assert all(rate >= 0 for rate in self.optimizer.rates().values())

    # --- Two optimizers ----------------------------------------------------------------------------

    @case(way=st.sampled_from(WAYS[:3]), steps=few)
    def train_with_a_second_optimizer(self, way, steps):
        first = self.subject
        optimizer = VSGD(self.model.parameters(), init_batches=1)
        self.subject = Subject(self.model, optimizer, way, {"init_batches": 1})
        self.watch.subjects.append(self.subject)
        for _ in range(steps):
            self.take(self.loss())
        self.watch.subjects.remove(self.subject)
        self.subject = first

    @case(way=st.sampled_from(WAYS[:2]), steps=few)
    def train_a_gan(self, way, steps):
        if self.gan is None:
            settings = {"init_batches": 2}
            nets = Generator(), MODELS["Tanh"]()
            self.gan = [Subject(net, VSGD(net.parameters(), **settings), way, settings) for net in nets]
            self.watch.subjects += self.gan
        maker, judge = self.gan
        own = self.subject
        noise = torch.randn(8, 2, generator=self.generator)
        real = torch.randn(8, 3, generator=self.generator)
        yes, no = torch.ones(8, dtype=torch.long), torch.zeros(8, dtype=torch.long)
        for _ in range(steps):
            self.subject = judge
            self.take(lambda: judge.model(real, yes) + judge.model(maker.model(noise).detach(), no))
            self.subject = maker
            self.take(lambda: judge.model(maker.model(noise), yes))
        self.subject = own


def _raising(kind, at, closure):
    """Return a closure that raises when it is called for the `at`-th time."""
    calls = 0

    def bomb():
        nonlocal calls
        calls += 1
        if calls == at:
            raise kind("in the closure")
        return closure()

    return bomb


def _foreign_state(whose, subject):
    parameters = [one.detach().clone().requires_grad_() for one in subject.parameters]
    if whose in ("Adam", "SGD"):
        make = torch.optim.Adam if whose == "Adam" else torch.optim.SGD
        groups, start = [], 0
        for group in subject.optimizer.param_groups:
            end = start + len(group["params"])
            groups.append({"params": parameters[start:end]})
            start = end
        other = make(groups, lr=0.1)
        for one in parameters:
            one.grad = torch.ones_like(one)
        other.step()
        return other.state_dict()
    if whose == "no dictionary":
        return {"model": 1}
    if whose == "another shape":
        parameters = [torch.randn(2, *one.shape).requires_grad_() for one in parameters]
    else:
        parameters = parameters[1:]
    groups = [{"params": parameters}]
    other = VSGD(groups, init_batches=1)
    for _ in range(3):
        other.minimize(lambda: sum(one.square().sum() for one in parameters))
    return other.state_dict()


def _same(one, other):
    if isinstance(one, torch.Tensor):
        return same_bits(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other
