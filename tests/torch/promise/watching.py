"""What must hold after every call, whatever the call: the promise, as checks."""

import warnings
from math import isfinite

import torch
from torch.nn.modules import module as torch_module

from pesky.errors import InputError
from pesky.torch import VSGD
from pesky.torch.progress import LATE

__all__ = ["SEVERAL", "Outcome", "Own", "Subject", "Watch", "same_bits"]

SEVERAL = 10  # skipped steps in a row after which there must have been a warning
SMALLEST = 1e-12  # scale


class Own(Exception):  # noqa: N818
    """An exception that a closure raises."""


def same_bits(one, other):
    """Whether two tensors are the same to the last bit, NaN and signs of zero included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
    kind = kinds[one.element_size()]
    return torch.equal(one.detach().contiguous().view(kind), other.detach().contiguous().view(kind))


class Subject:
    """A model with one optimizer on it, the way its steps are called, and what has been said so far."""

    def __init__(self, model, optimizer, way, settings):
        self.model, self.optimizer, self.way, self.settings = model, optimizer, way, settings
        self.is_mixed = False  # whether there were steps of other ways
        self.skips = 0  # in a row
        self.said = []  # the words of all warnings
        self.quiet = 0  # steps in a row that moved nothing, without being called skipped
        if way == "watch":
            optimizer.watch(model)

    def step(self, closure, between=lambda: None):
        """Take one step on the loss of a closure, in this subject's way."""
        optimizer = self.optimizer
        if self.way == "minimize":
            optimizer.minimize(closure)
            return
        optimizer.zero_grad()
        loss = closure()
        if self.way == "again":
            optimizer.backward(loss, again=closure)
        elif self.way == "backward":
            optimizer.backward(loss)
        else:
            loss.backward()
        between()
        optimizer.step()

    @property
    def parameters(self):
        """Those of the optimizer."""
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    def counts(self):
        """Return how many steps were taken, and how many were skipped."""
        counters = self.optimizer.counters
        return counters["steps"], sum(counters["skipped"].values())


class Outcome:
    """What one call did."""

    def __init__(self, error, steps, skipped, moved, evaluations):
        self.error, self.steps, self.skipped, self.moved = error, steps, skipped, moved
        self.evaluations = evaluations

    @property
    def refused(self):
        return isinstance(self.error, InputError)


class Watch:
    """Runs calls, and checks the promise after each; names in `off` are not checked."""

    def __init__(self, off=frozenset()):
        self.off = off
        self.subjects = []

    def check(self, name, holds, *words):
        if name not in self.off and not holds:
            raise AssertionError(f"{name}: {' '.join(map(str, words))}")

    # --- One call ----------------------------------------------------------------------------------

    def call(self, subject, action, *, own=None, also=(), is_step=True, poisoned=False):
        """Do something to a subject; `own`: the kinds of exceptions that its closure may raise.

        `also` are kinds that may come from elsewhere, beside our own. `action` gets a function that
        wraps closures, so that all their evaluations are seen.
        """
        before = self._snapshot()
        buffers = [(one, one.clone()) for one in subject.model.buffers()]
        counts = subject.counts()
        hooks = set(torch_module._global_forward_pre_hooks)
        seen, raised = [], []
        overflown = set()  # buffers, in the model's own first pass: parameters may be huge, and finite

        def seeing(closure):
            def evaluate():
                self._check_frozen(before, "during an evaluation")
                try:
                    loss = closure()
                except BaseException as problem:
                    raised.append(problem)
                    raise
                if not seen:
                    overflown.update(one for one, _ in buffers if not bool(one.isfinite().all()))
                seen.append(loss)
                return loss

            return evaluate

        error = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                action(seeing)
            except BaseException as problem:
                error = problem
        words = [str(one.message) for one in caught]
        subject.said += words
        steps, skipped = (now - then for now, then in zip(subject.counts(), counts, strict=True))
        moved = any(
            not same_bits(one, value)
            for one, value in before.items()
            if any(one is ours for ours in subject.parameters)
        )
        outcome = Outcome(error, steps, skipped, moved, len(seen) + len(raised))
        for one in caught:
            self.check("warnings", not issubclass(one.category, RuntimeWarning), one.message)
        if is_step:  # and not an interrupt, which may come while hooks are being removed
            left = set(torch_module._global_forward_pre_hooks) - hooks
            self.check("hooks", not left, "a hook was left behind")
        self._check_error(error, raised, own, also, outcome)
        self._check_parameters(before, subject)
        self._check_buffers(buffers, overflown, subject, outcome, poisoned)
        self._check_state(subject)
        if is_step:
            self._check_said(subject, outcome)
        return outcome

    def _snapshot(self):
        tensors = {}
        for subject in self.subjects:
            for one in (*subject.model.parameters(), *subject.parameters):
                tensors[one] = one.detach().clone()
        return tensors

    # --- What is checked ---------------------------------------------------------------------------

    def _check_error(self, error, raised, own, also, outcome):
        if error is None:
            return
        if isinstance(error, AssertionError):
            raise error
        if own is not None and isinstance(error, own) and any(error is one for one in raised):
            complete = outcome.steps + outcome.skipped == 1
            self.check("exceptions", complete or not outcome.moved, "moved by half a step:", repr(error))
        elif isinstance(error, (InputError, *also)):
            self.check("refusals", not outcome.moved, "refused, and moved all the same:", error)
        elif "words" not in self.off:
            raise AssertionError(f"words: {type(error).__name__} is not in our words") from error

    def _check_frozen(self, before, when):
        for one, value in before.items():
            if not one.requires_grad:
                self.check("frozen", same_bits(one, value), "a frozen parameter moved", when)

    def _check_parameters(self, before, subject):
        ours = {id(one) for one in subject.parameters}
        self._check_frozen(before, "in a call")
        for one, value in before.items():
            if bool(torch.isfinite(value).all()):
                self.check("finite", bool(torch.isfinite(one).all()), tuple(one.shape), one.dtype)
            if id(one) not in ours:
                self.check("bystanders", same_bits(one, value), "another's parameter moved")

    def _check_buffers(self, buffers, overflown, subject, outcome, poisoned):
        for one, value in buffers:
            if poisoned and subject.way == "minimize" and outcome.skipped:
                self.check("buffers", same_bits(one, value), "a skipped step changed buffers")
            elif not poisoned and one not in overflown and bool(torch.isfinite(value).all()):
                self.check("buffers", bool(torch.isfinite(one).all()), "buffers are not finite")

    def _check_state(self, subject):
        if not isinstance(subject.optimizer, VSGD):
            return
        if not all(bool(torch.isfinite(one).all()) for one in subject.parameters):
            return  # somebody else's doing, and averages may show it
        state = subject.optimizer.state_dict()
        wrong = [path for path, number in _numbers("", state) if not isfinite(number)]
        self.check("state", not wrong, "not finite:", *wrong)
        scale = state["collective"]["scale"]
        self.check("scale", scale == 0 or scale >= SMALLEST, scale)

    def _check_said(self, subject, outcome):
        if outcome.error is not None:
            return
        gradients = [one.grad for one in subject.parameters if one.grad is not None]
        counted = outcome.steps + outcome.skipped
        self.check("counts", counted == (1 if gradients else counted) and counted <= 1, counted)
        if outcome.skipped:
            subject.skips += 1
        elif outcome.steps:
            subject.skips = 0
        if subject.skips >= SEVERAL:
            told = any("skip" in words for words in subject.said)
            self.check("skipping is said", told, subject.skips, subject.optimizer.counters["skipped"])
        if outcome.moved or outcome.skipped or not _could_move(subject, gradients):
            subject.quiet = 0
        else:
            subject.quiet += 1
        self.check("standing still is said", subject.quiet < LATE or subject.said, subject.quiet)


def _could_move(subject, gradients):
    """Whether there was something to do, were steps long enough."""
    optimizer = subject.optimizer
    collecting = optimizer.counters["collecting"]
    still = all(float(group["lr"]) == 0 for group in optimizer.param_groups)
    return (
        not collecting
        and not still
        and any(float(one.to_dense().abs().max()) > 1e-3 for one in gradients)
    )


def _numbers(path, value):
    """Every number in a state dict with its place, and of a tensor the largest, or NaN."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield path, float(value.double().abs().max())
    elif isinstance(value, dict):
        for key, one in value.items():
            if key in ("lr", "weight_decay"):  # as the user set them
                continue
            yield from _numbers(f"{path}/{key}", one)
    elif isinstance(value, list | tuple):
        for k, one in enumerate(value):
            yield from _numbers(f"{path}/{k}", one)
    elif isinstance(value, float):
        yield path, value
