"""A state machine that calls VSGD as users do, one rule for each thing that they may do."""

import copy
import io
import os
import pickle
import random
from itertools import count
from math import inf, nan

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import nn

from pesky.torch import VSGD, words
from tests.torch.promise.closures import ODD, REPEATABLE, TO_REFUSE, odd_closure
from tests.torch.promise.interrupts import interrupted
from tests.torch.promise.models import MODELS, POISONS, Generator, batch_for, poisoned
from tests.torch.promise.watching import Own, Subject, Watch, same_bits

__all__ = ["PromiseMachine"]

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


class PromiseMachine(RuleBasedStateMachine):
    """Whatever is called: what was finite is finite, what is frozen stays, what was not done is said."""

    off = frozenset(os.environ.get("PESKY_PROMISE_OFF", "").split(","))  # of rules and checks

    @initialize(
        name=st.sampled_from(list(MODELS)),
        way=st.sampled_from(WAYS),
        dialect=st.sampled_from(["robust", "robust", "robust", "paper"]),
        granularity=st.sampled_from(["element", "block", "global"]),
        decay=st.sampled_from([0.0, 0.0, 0.1]),
        init_batches=st.sampled_from([1, 2, 10]),
        every=st.sampled_from([None, None, 1, 3]),
        seed=st.integers(0, 2**16),
    )
    def start(self, name, way, dialect, granularity, decay, init_batches, every, seed):
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.watch = Watch(self.off)
        settings = {
            "dialect": dialect,
            "granularity": "element" if name == "SparseWords" else granularity,
            "weight_decay": decay,
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

    # --- Training ----------------------------------------------------------------------------------

    @case(steps=few)
    def train(self, steps):
        for _ in range(steps):
            outcome = self.take(self.loss())
            refused = outcome.error is not None and not self.subject.is_mixed
            self.watch.check("training", not refused, "refused:", outcome.error)

    @case(way=st.sampled_from(WAYS[:3]))
    def train_in_another_way(self, way):
        self.subject.is_mixed |= way != self.subject.way
        own, self.subject.way = self.subject.way, way
        self.take(self.loss())
        self.subject.way = own

    @case()
    def randomness_is_that_of_one_call(self):
        closure = self.loss()
        before = torch.get_rng_state()
        spare = copy.deepcopy(self.model)
        x, y = self.batch()
        spare(x, y)
        expected = torch.get_rng_state()
        torch.set_rng_state(before)
        outcome = self.take(closure)
        if outcome.error is None:
            same = torch.equal(torch.get_rng_state(), expected)
            self.watch.check("randomness", same, "more or less was drawn than by one call")

    @case(train=st.booleans())
    def change_mode(self, train):
        self.model.train(train)

    @case(size=st.sampled_from([0, 1, 2]))
    def train_on_a_small_batch(self, size):
        self.take(self.loss(size), own=(ValueError, RuntimeError, IndexError), poisoned=size == 0)

    @case(kind=st.sampled_from(POISONS), count=st.sampled_from([1, 1, 2, 3, 15, 100]))
    def train_on_poison(self, kind, count):
        x, y = self.batch()
        for _ in range(count):
            self.take(poisoned(kind, self.model, x, y), poisoned=True)

    # --- Parameters that come and go ---------------------------------------------------------------

    @case(layer=layers)
    def freeze(self, layer):
        getattr(self.model, layer).requires_grad_(False)
        self._leave_something_to_learn()

    def _leave_something_to_learn(self):
        if not any(one.requires_grad for one in self.model.learning()):
            self.model.head.requires_grad_(True)

    @case(layer=layers)
    def unfreeze(self, layer):
        getattr(self.model, layer).requires_grad_(True)

    @case(layer=layers)
    def freeze_between_backward_and_step(self, layer):
        self.take(self.loss(), between=lambda: self.freeze(layer))

    @case()
    def use_the_branch_or_not(self):
        self.model.branching = not self.model.branching
        self._leave_something_to_learn()

    @case(layer=st.sampled_from(["head", "branch"]))
    def replace_a_parameter(self, layer):
        module = getattr(self.model, layer)
        module.weight = nn.Parameter(torch.randn_like(module.weight))

    @case(layer=st.sampled_from(["head", "branch"]), turned=st.booleans())
    def replace_the_data(self, layer, turned):
        self.is_recast |= turned
        weight = getattr(self.model, layer).weight
        weight.data = weight.data.t().contiguous().t() if turned else torch.randn_like(weight)

    @case(kind=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]))
    def cast(self, kind):
        self.is_recast = True
        if isinstance(self.model, MODELS["SparseWords"]) and kind == torch.float16:
            kind = torch.bfloat16  # torch does not add sparse tensors of the other
        self.model.to(kind)

    @case(how=st.sampled_from(["copy", "zero", "large", "load", "noise", "sgd"]))
    def edit_from_outside(self, how):
        weight = self.model.head.weight
        with torch.no_grad():
            if how == "copy":
                weight.copy_(torch.randn(weight.shape, generator=self.generator))
            elif how == "zero":
                weight.fill_(0)
            elif how == "large":
                weight.mul_(100)
            elif how == "load":
                self.model.load_state_dict(copy.deepcopy(self.model.state_dict()))
            elif how == "noise":
                for one in self.model.parameters():
                    one.add_(0.01)
            else:
                other = torch.optim.SGD([weight], lr=0.1)
                with torch.enable_grad():
                    self.loss()().backward()
                other.step()
        with torch.no_grad():  # a product in half precision may be infinite
            for one in self.model.parameters():
                one.nan_to_num_()

    @case(granularity=st.sampled_from(["element", "block", "global"]))
    def add_a_group(self, granularity):
        known = {id(one) for one in self.subject.parameters}
        new = [one for one in self.model.parameters() if id(one) not in known]
        if not new or any(one.grad is not None and one.grad.is_sparse for one in new):
            return
        self.do(lambda: self.optimizer.add_param_group({"params": new, "granularity": granularity}))

    # --- Closures ----------------------------------------------------------------------------------

    @case(kind=st.sampled_from(ODD), count=st.integers(1, 3))
    def train_on_an_odd_loss(self, kind, count):
        x, y = self.batch()
        is_watched = self.subject.way == "watch"
        for _ in range(count):
            # A second backward() that the user calls is between the user and torch.
            also = (RuntimeError,) if is_watched and kind == "own backward" else ()
            outcome = self.take(odd_closure(kind, self.model, x, y), also=also)
            if outcome.error is not None:
                began_otherwise = words.NO_AGAIN in str(outcome.error)
                may = kind not in REPEATABLE or is_watched or began_otherwise
                self.watch.check("odd losses", may, kind, "was refused:", outcome.error)

    @case(kind=st.sampled_from(TO_REFUSE))
    def train_on_what_is_no_loss(self, kind):
        x, y = self.batch()
        if self.subject.way != "watch":  # whose loss is not ours to check
            outcome = self.take(odd_closure(kind, self.model, x, y))
            is_skipped = kind == "unrelated" and outcome.skipped and not outcome.moved
            self.watch.check("no losses", outcome.refused or is_skipped, kind, "was taken for a loss")

    @precondition(lambda self: self.subject.way == "minimize")
    @case(kind=st.sampled_from(["batch", "numpy", "python"]), count=st.sampled_from([1, 3, 25]))
    def train_on_a_closure_that_does_not_repeat(self, kind, count):
        def closure():
            x, y = self.batch()
            if kind == "numpy":
                return self.model(x[:4], y[:4]) * (1 + np.random.random())
            return self.model(x, y) * (1 + random.random() if kind == "python" else 1)

        said, repeated = len(self.subject.said), 0
        for _ in range(count):
            outcome = self.take(closure)
            if len(self.subject.said) > said:
                repeated += outcome.evaluations > 1
            else:
                repeated = outcome.evaluations > 1
        self.watch.check("not repeating", repeated < 20, repeated, "steps with second evaluations")

    # --- Between backward and step -----------------------------------------------------------------

    @precondition(lambda self: self.subject.way != "minimize")
    @case(how=st.sampled_from(["clip", "zero", "some none", "all none", "huge", "nan", "noise"]))
    def edit_gradients(self, how):
        def edit():
            gradients = [one for one in self.subject.parameters if one.grad is not None]
            for k, one in enumerate(gradients):
                if how == "zero":
                    one.grad.zero_()
                elif how == "all none" or (how == "some none" and k % 2):
                    one.grad = None
                elif how == "huge":
                    one.grad.mul_(1e15)
                elif how == "nan":
                    one.grad.mul_(nan)
                elif how == "noise" and not one.grad.is_sparse:
                    one.grad.add_(torch.randn(one.shape, generator=self.generator))
            if how == "clip" and not any(one.grad.is_sparse for one in gradients):
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)

        self.take(self.loss(), between=edit, poisoned=how in ("huge", "nan"))

    @case()
    def step_without_backward(self):
        self.do(self.optimizer.step)
        self.do(self.optimizer.zero_grad)
        self.do(self.optimizer.step)

    @precondition(lambda self: self.subject.way != "minimize")
    @case()
    def accumulate(self):
        first = self.loss()
        optimizer, way = self.optimizer, self.subject.way

        def more():
            loss = first()
            if way == "watch":
                loss.backward()
            else:
                optimizer.backward(loss, again=first if way == "again" else None)

        self.take(self.loss(), between=more)

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
        self.take(self.loss(), own=kind)
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
            optimizer.load_state_dict(_through_file(old.optimizer.state_dict(), how == "file"))
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


def _through_file(state, by_file):
    if not by_file:
        return state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


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
