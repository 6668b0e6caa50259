"""Loops that are somebody else's take the steps of `minimize`, or say once why they cannot."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from pesky.errors import InputError
from tests.torch.loops import close, same
from tests.torch.loss.loops import Task, watched
from tests.torch.robust import classes

PAIRS = [
    ("model", "minimize"),
    ("pair", "minimize"),
    ("closure", "minimize"),
    ("functional", "minimize squared"),  # to second order, which is all of a squared error
]
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def assert_like(task, other, **tolerances):
    assert task.optimizer.counters["form"] == "measuring"
    assert task.optimizer.counters["skipped"] == {}
    close(task.iterate, other.iterate, **(tolerances or EXACT))
    one, two = task.optimizer.collective, other.optimizer.collective
    assert one.averaged == two.averaged
    assert one.scale == pytest.approx(two.scale, rel=1e-6)
    assert one.shows_average == two.shows_average


@pytest.mark.parametrize("layer", [None, nn.BatchNorm1d, nn.Dropout])
@pytest.mark.parametrize(("way", "own"), PAIRS)
def test_every_loop_takes_the_steps_of_minimize(way, own, layer):
    between = {None: [], nn.BatchNorm1d: [16], nn.Dropout: [0.2]}[layer]

    def made():
        return [] if layer is None else [layer(*between)]

    task, other = watched(way, *made()), Task(*made())
    # Biases before a batch norm have no gradient but rounding, which is not the same in both.
    is_rounded = layer is nn.BatchNorm1d and way == "functional"
    tolerances = {"rtol": 1e-2, "atol": 1e-3} if is_rounded else EXACT
    assert_like(task.train(way, 100), other.train(own, 100), **tolerances)
    close(task.net.buffers(), other.net.buffers(), **tolerances)


def test_a_factor_on_the_loss_is_part_of_it():
    """As where batches are accumulated: here four times a quarter of the same one."""
    task, other = watched("pair"), Task()
    for x, y in classes(60):
        task.optimizer.zero_grad()
        for part, labels in zip(x.double().chunk(4), y.chunk(4), strict=True):
            (task.criterion(task.net(part), labels) / 4).backward()
        task.optimizer.step()
    assert_like(task, other.train("minimize"))


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("way", ["pair", "functional"])
def test_a_scaler_changes_nothing(way, unscale):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    task, other = Task(), watched(way)
    if way == "pair":
        task.optimizer.watch(task.net, task.criterion, scaler=scaler)
    else:
        task.optimizer.watch(task.net)
    for x, y in classes(60):
        task.optimizer.zero_grad()
        if way == "pair":
            scaler.scale(task.criterion(task.net(x.double()), y)).backward()
        else:
            loss = (task.net(x.double()) - nn.functional.one_hot(y, 3)).square().mean()
            task.optimizer.backward(loss, scaler=scaler)
        if unscale:
            scaler.unscale_(task.optimizer)
            nn.utils.clip_grad_norm_(task.net.parameters(), 1e9)
        scaler.step(task.optimizer)
        scaler.update()
    assert_like(task, other.train(way))


def test_what_a_view_makes_of_the_outputs_is_known():
    task, other = watched("pair"), Task()
    for x, y in classes(60):
        task.optimizer.zero_grad()
        outputs = task.net(x.double().view(4, 8, 8))
        task.criterion(outputs.view(-1, 3), y).backward()
        task.optimizer.step()
    assert_like(task, other.train("minimize"))


class Checkpointed(nn.Module):
    def __init__(self, net, reentrant):
        super().__init__()
        self.net, self.reentrant = net, reentrant

    def forward(self, x):
        first, *middle, last = self.net
        return last(checkpoint(nn.Sequential(*middle), first(x), use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_change_nothing(reentrant):
    task, other = Task(nn.Linear(16, 16)), Task(nn.Linear(16, 16))
    other.net.load_state_dict(task.net.state_dict())
    other.train("minimize")
    model = Checkpointed(task.net, reentrant)
    task.optimizer.watch(model, task.criterion)
    for x, y in classes(60):
        task.optimizer.zero_grad()
        task.criterion(model(x.double()), y).backward()
        task.optimizer.step()
    assert_like(task, other)


@pytest.mark.slow
def test_a_compiled_model_is_watched_as_any_other():
    task, other = Task(), Task().train("minimize")
    model = torch.compile(task.net, backend="aot_eager")
    task.optimizer.watch(model, task.criterion)
    for x, y in classes(60):
        task.optimizer.zero_grad()
        task.criterion(model(x.double()), y).backward()
        task.optimizer.step()
    assert_like(task, other)


def test_a_model_that_learns_in_evaluation_mode_sees_the_iterate_then():
    task, other = watched("pair"), Task().train("minimize")
    task.net.eval()
    task.train("pair")
    assert_like(task, other)


def clipped(task, clip, steps=200):
    for x, y in classes(steps):
        task.optimizer.zero_grad()
        task.criterion(task.net(x.double()), y).backward()
        clip(task.net.parameters())
        task.optimizer.step()
    with torch.no_grad():
        return sum(task.criterion(task.net(x.double()), y).item() for x, y in classes(20, seed=9)) / 20


@pytest.mark.parametrize(
    "clip",
    [
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.05),
        lambda parameters: nn.utils.clip_grad_value_(parameters, 0.01),
    ],
    ids=["norm", "value"],
)
def test_clipped_gradients_do_not_mislead_the_length(clip):
    """The loss falls along a clipped gradient by its own slope, not by that of what is left of it."""
    plain = clipped(watched("pair"), lambda parameters: None)
    task = watched("pair")
    assert clipped(task, clip) < 2 * plain
    assert task.optimizer.counters["form"] == "measuring"
    assert task.optimizer.collective.restored == 0


def test_an_ineffective_clip_changes_nothing():
    task, other = watched("pair"), Task().train("minimize")
    clipped(task, lambda parameters: nn.utils.clip_grad_norm_(parameters, 1e9), 60)
    assert_like(task, other)


# --- What cannot be repeated -----------------------------------------------------------------------


def scaled_outputs(task, x, y):
    return task.criterion(2 * task.net(x), y)


def with_penalty(task, x, y):
    return task.criterion(task.net(x), y) + 0.1 * task.net[0].weight.square().sum()


def own_batch(task, x, y):
    return task.criterion(task.net(x), y)


class Drifting(nn.Module):
    """A loss that is another one each time."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, outputs, labels):
        self.calls += 1
        return cross_entropy(outputs, labels) * (1 + self.calls % 7)


@pytest.mark.parametrize(
    ("loss_of", "words"),
    [(scaled_outputs, "not watched"), (with_penalty, "penalty"), (own_batch, "another loss each time")],
)
def test_what_does_not_repeat_is_told_once_and_trained_on(loss_of, words):
    task = Task()
    if loss_of is own_batch:
        task.criterion = Drifting()
    task.optimizer.watch(task.net, task.criterion)

    def train():
        for x, y in classes(40):
            task.optimizer.zero_grad()
            loss_of(task, x.double(), y).backward()
            task.optimizer.step()

    assert_told_once(words, train)
    assert task.optimizer.counters["form"] == "following"
    assert task.optimizer.counters["moves"] > 10
    assert all(one.isfinite().all() for one in task.iterate)


def assert_told_once(words, train):
    with pytest.warns(UserWarning, match=words) as caught:
        train()
    assert len(caught) == 1


def test_an_input_that_is_changed_before_the_step_is_noticed():
    task = watched("pair")

    def train():
        for x, y in classes(20):
            x = x.double()
            task.optimizer.zero_grad()
            task.criterion(task.net(x), y).backward()
            x.zero_()
            task.optimizer.step()

    assert_told_once("was changed before the step", train)
    assert task.optimizer.counters["form"] == "following"


def test_a_penalty_beside_watched_outputs_is_told_once():
    task = watched("functional")

    def train():
        for x, _ in classes(20):
            task.optimizer.zero_grad()
            penalty = task.net[0].weight.square().sum()
            task.optimizer.backward(task.net(x.double()).square().mean() + penalty)
            task.optimizer.step()

    assert_told_once("penalties", train)


def test_a_closure_that_returns_no_loss_is_refused_unless_there_is_nothing_to_do():
    task = Task()
    task.optimizer.step(lambda: None)
    assert sum(task.optimizer.explain().skipped.values()) == 1

    def closure():
        task.net(torch.zeros(2, 8, dtype=torch.float64)).sum().backward()

    with pytest.raises(InputError, match="must return the loss"):
        task.optimizer.step(closure)


def test_watching_twice_is_watching_once():
    task, other = watched("pair"), watched("pair")
    task.optimizer.watch(task.net, task.criterion)
    assert_like(task.train("pair", 30), other.train("pair", 30))


# --- What is kept, and for how long ------------------------------------------------------------------


@pytest.mark.parametrize("reached", [True, False])
def test_inputs_are_kept_until_the_step_and_no_longer(reached):
    task = watched("pair")
    seen = []
    for x, y in classes(30):
        x = x.double()
        task.optimizer.zero_grad()
        loss = task.criterion(task.net(x), y)
        seen.append(weakref.ref(x))
        del x
        if reached:
            loss.backward()
            assert seen[-1]() is not None
            task.optimizer.step()
        del loss
        gc.collect()
        assert seen[-1]() is None


def test_gradients_are_kept_by_second_evaluations_of_a_closure():
    task = Task()
    shift = nn.Parameter(torch.zeros(3, dtype=torch.float64))  # another optimizer's
    for x, y in classes(20):
        x = x.double()
        count, there = [], [one.clone() for one in task.iterate]

        def closure(x=x, y=y, count=count):
            task.optimizer.zero_grad()
            count.append(1)
            loss = cross_entropy(task.net(x) + shift, y)
            loss.backward()
            return loss

        shift.grad = None
        task.optimizer.step(closure)
        assert len(count) > 1
        loss = functional(task, there, x, y, shift)
        expected = torch.autograd.grad(loss, [*there, shift])
        close([one.grad for one in [*task.net.parameters(), shift]], expected, **EXACT)


def functional(task, there, x, y, shift):
    """The loss at other parameters, by torch's own functional call."""
    for one in there:
        one.requires_grad_()
    names = [name for name, _ in task.net.named_parameters()]
    outputs = torch.func.functional_call(task.net, dict(zip(names, there, strict=True)), (x,))
    return cross_entropy(outputs + shift, y)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_a_watched_model_is_not_watched(copied):
    task = watched("pair").train("pair")
    other = copied(task.net)
    other.eval()
    before = task.optimizer.collective.averaged
    x, y = next(classes(1))
    cross_entropy(other(x.double()), y).backward()
    other.state_dict()
    assert task.optimizer._pending.evaluations == []
    assert task.optimizer.collective.averaged == before
    assert not other._forward_pre_hooks
    assert not other._forward_hooks
    assert not other._state_dict_pre_hooks


def test_a_handle_ends_it():
    task = Task()
    handle = task.optimizer.watch(task.net, task.criterion)
    task.train("pair", 20)
    handle.remove()
    assert not task.net._forward_hooks
    assert not task.criterion._forward_hooks
    with pytest.raises(InputError, match="again"):
        task.train("pair", 1)


def test_minimize_on_a_watched_model_is_minimize():
    task, other = watched("pair"), Task()
    assert_like(task.train("minimize"), other.train("minimize"))
    assert same(task.net.parameters(), other.net.parameters())
