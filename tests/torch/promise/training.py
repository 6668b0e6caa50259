"""The rules of the state machine by which models are trained, well or badly."""

import copy
import random
from math import nan

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import precondition
from torch import nn

from pesky.torch import words
from tests.torch.promise.beginning import WAYS, Beginning, case, few, layers
from tests.torch.promise.closures import ODD, REPEATABLE, TO_REFUSE, odd_closure
from tests.torch.promise.models import MODELS, POISONS, poisoned

__all__ = ["Training"]


class Training(Beginning):
    """Steps on sound, odd and poisoned losses; parameters and gradients are changed on the way."""

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
