"""What the first version did wrong in ordinary situations, each as it was found."""

import random
import warnings
from itertools import count
from math import pi

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from pesky.errors import InputError
from pesky.torch import VSGD
from tests.torch.loops import FORMS, accuracy, batches, data, model, parameters, same, train_in_form
from tests.torch.promise.watching import SEVERAL

GRANULARITIES = ("element", "block", "global")


def are_finite(net):
    return all(bool(torch.isfinite(one).all()) for one in net.parameters())


# --- Freezing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("steps_before", [5, 30, 60])
@pytest.mark.parametrize("form", FORMS)
def test_a_layer_that_is_frozen_in_mid_run_stays_and_the_others_learn_on(
    form, steps_before, layer, granularity
):
    net = model()
    dialect = "paper" if form == "paper" else "robust"
    optimizer = VSGD(net.parameters(), granularity=granularity, dialect=dialect)
    train_in_form(form, net, optimizer, steps_before)
    net[layer].requires_grad_(False)
    before = parameters(net)
    for _ in range(8):
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "the loss has not moved"
            )  # as it hardly has, without again
            train_in_form(form, net, optimizer, 10, seed=2)
        assert are_finite(net)
        assert same(net[layer].parameters(), before[layer : layer + 2])
    other = 2 - layer
    assert not same(net[other].parameters(), before[other : other + 2])
    if form != "following":  # which takes longer
        assert accuracy(net) > 0.6
    assert sum(optimizer.explain().skipped.values()) < 5


# --- Closures ----------------------------------------------------------------------------------------


def non_repeating(kind, net, seed):
    """Return a closure whose loss is another in every call; torch's own generator has no part in it."""
    numpy_source, python_source = np.random.default_rng(seed), random.Random(seed)
    x, y = data()
    turns = count(seed)

    def closure():
        if kind == "batches":
            chosen = torch.randint(0, len(x), (8,), generator=torch.Generator().manual_seed(next(turns)))
        elif kind == "numpy":
            chosen = torch.from_numpy(numpy_source.integers(0, len(x), 8))
        else:
            chosen = torch.tensor(python_source.choices(range(len(x)), k=8))
        closure.calls += 1
        return cross_entropy(net(x[chosen]), y[chosen])

    closure.calls = 0
    return closure


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["batches", "numpy", "python"])
def test_a_closure_that_draws_its_own_batch_is_noticed_said_once_and_learnt_from(kind, seed):
    net = model(seed)
    optimizer = VSGD(net.parameters())
    closure = non_repeating(kind, net, seed)
    x, y = data()
    before = cross_entropy(net(x), y).item()
    said, calls = [], []
    for _ in range(200):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first = closure.calls
            optimizer.minimize(closure)
        calls.append(closure.calls - first)
        said += [len(calls)] * len(caught)
        assert are_finite(net)
    assert len(said) == 1
    assert said[0] <= 40
    assert set(calls[said[0] :]) == {1}
    assert cross_entropy(net(x), y).item() < before


def test_dropout_repeats_and_is_not_taken_for_a_closure_that_does_not():
    net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    optimizer = VSGD(net.parameters())
    calls = []
    for x, y in batches(80):
        optimizer.minimize(lambda x=x, y=y: calls.append(1) or cross_entropy(net(x), y))
    assert len(calls) > 100


def poisson_residual(net, x):
    x = x.clone().requires_grad_()
    u = net(x) * x * (1 - x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    return (bend + pi**2 * (pi * x).sin()).square().mean()


def test_a_closure_that_differentiates_inside_is_learnt_from():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = VSGD(net.parameters())
    x = torch.linspace(0, 1, 32)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how curvature comes out of second derivatives is said
        losses = [optimizer.minimize(lambda: poisson_residual(net, x)).item() for _ in range(200)]
    assert losses[-1] < 0.05 * losses[0]
    assert optimizer.collective.scale > 0
    assert not optimizer.explain().skipped


@pytest.mark.filterwarnings("ignore:bbprop has no rule")
@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_penalty_is_learnt_from(form):
    net = model()
    optimizer = VSGD(net.parameters(), dialect="paper" if form == "paper" else "robust")
    losses = []
    for x, y in batches(100):

        def closure(x=x, y=y):
            x = x.clone().requires_grad_()
            outputs = net(x)
            (slope,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
            return cross_entropy(outputs, y) + 0.01 * slope.square().mean()

        if form == "following":
            optimizer.zero_grad()
            loss = closure()
            optimizer.backward(loss)
            optimizer.step()
        else:
            loss = optimizer.minimize(closure)
        losses.append(loss.item())
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    assert not optimizer.explain().skipped


@pytest.mark.parametrize(("source", "passes"), [("bbprop", 1), ("finite-difference", 2)])
def test_evaluations_of_ordinary_closures_record_no_graph_but_for_gradients(source, passes):
    """A finite difference needs a second gradient; losses that are only looked at need none."""
    net = model()
    optimizer = VSGD(net.parameters(), curvature=source)
    recorded, calls = 0, 0
    for x, y in batches(40):

        def closure(x=x, y=y):
            nonlocal recorded, calls
            loss = cross_entropy(net(x), y)
            calls += 1
            recorded += loss.grad_fn is not None
            return loss

        optimizer.minimize(closure)
    assert recorded == passes * 40 < calls


# --- What is refused, in our own words ---------------------------------------------------------------


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_adams_state_is_not_taken_for_ours_which_is_said_and_changes_nothing(granularity):
    net = model()
    adam = torch.optim.Adam(net.parameters())
    for x, y in batches(2):
        adam.zero_grad()
        cross_entropy(net(x), y).backward()
        adam.step()
    optimizer = VSGD(net.parameters(), granularity=granularity)
    before = parameters(net)
    with pytest.warns(UserWarning, match="another optimizer"):
        optimizer.load_state_dict(adam.state_dict())
    assert same(parameters(net), before)
    assert optimizer.param_groups[0]["lr"] == 1
    assert optimizer.explain().steps == 0
    train_in_form("measuring", net, optimizer, 20)
    assert not same(parameters(net), before)


def test_a_state_of_another_shape_is_refused_and_changes_nothing():
    net, other = model(), nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))
    optimizer, theirs = VSGD(net.parameters()), VSGD(other.parameters())
    train_in_form("measuring", other, theirs, 15)
    with pytest.raises(InputError):
        optimizer.load_state_dict(theirs.state_dict())
    assert optimizer.explain().steps == 0
    train_in_form("measuring", net, optimizer, 15)
    assert are_finite(net)


def test_a_closure_that_calls_backward_itself_is_right_or_refused_with_the_fix():
    net = model()
    optimizer = VSGD(net.parameters())
    before = parameters(net)
    refusals = []
    for x, y in batches(15):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            return loss

        try:
            optimizer.minimize(closure)
        except InputError as refusal:
            refusals.append(str(refusal))
    assert all("backward" in words for words in refusals)
    assert same(parameters(net), before) == (len(refusals) == 15)
    train_in_form("measuring", net, optimizer, 15)
    assert not same(parameters(net), before)
    assert are_finite(net)


@pytest.mark.parametrize(
    "call",
    [
        lambda optimizer, loss: optimizer.minimize(loss),
        lambda optimizer, loss: optimizer.step(loss),
        lambda optimizer, loss: optimizer.backward(loss, again=loss),
    ],
    ids=["minimize", "step", "backward"],
)
def test_a_tensor_in_place_of_a_closure_is_refused_with_the_fix(call):
    net = model()
    optimizer = VSGD(net.parameters())
    before = parameters(net)
    x, y = next(iter(batches(1)))
    loss = cross_entropy(net(x), y)
    with pytest.raises(InputError, match=r"lambda|closure|function"):
        call(optimizer, loss)
    assert same(parameters(net), before)


def test_a_parameter_that_has_got_another_shape_begins_anew():
    net = model()
    optimizer = VSGD(net.parameters())
    train_in_form("measuring", net, optimizer, 15)
    net[2].weight.data = torch.randn(4, 16)
    net[2].bias.data = torch.zeros(4)
    before = parameters(net)
    train_in_form("measuring", net, optimizer, 5)  # it sees initial batches of its own
    assert same(parameters(net)[2:], before[2:])
    train_in_form("measuring", net, optimizer, 20)
    assert not same(parameters(net)[2:], before[2:])
    assert all(one.isfinite().all() for one in parameters(net))


# --- What is said ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_steps_that_are_skipped_one_after_another_are_said_once(form):
    net = model()
    optimizer = VSGD(net.parameters(), dialect="paper" if form == "paper" else "robust")
    train_in_form(form, net, optimizer, 20)
    after = []  # a step may be undone at first: whether it was the reason is not known
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(100):
            if form == "following":
                optimizer.zero_grad()
                optimizer.backward(net(torch.full((8, 10), torch.nan)).square().mean())
                optimizer.step()
            else:
                optimizer.minimize(lambda: net(torch.full((8, 10), torch.nan)).square().mean())
            after.append(parameters(net))
    assert len(caught) == 1
    assert "skip" in str(caught[0].message)
    assert sum(optimizer.explain().skipped.values()) == 100
    assert all(same(after[3], one) for one in after[4:])
    assert "skip" in str(optimizer.explain()).splitlines()[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_few_skipped_steps_are_not_worth_a_warning(form):
    net = model()
    optimizer = VSGD(net.parameters(), dialect="paper" if form == "paper" else "robust")
    train_in_form(form, net, optimizer, 20)  # warnings are errors here
    for _ in range(2 * SEVERAL):
        loss = float("nan")
        if form == "following":
            optimizer.zero_grad()
            optimizer.backward(net(torch.ones(8, 10)).square().mean() * loss)
            optimizer.step()
        else:
            optimizer.minimize(lambda: net(torch.ones(8, 10)).square().mean() * loss)  # noqa: B023
        train_in_form(form, net, optimizer, 1)
    assert sum(optimizer.explain().skipped.values()) == 2 * SEVERAL


@pytest.mark.parametrize("lr", [1e-3, 0.01, torch.tensor(1e-3)])
def test_a_small_lr_by_habit_is_said_with_what_to_do(lr):
    with pytest.warns(UserWarning, match="lr"):
        VSGD(model().parameters(), lr=lr)


@pytest.mark.parametrize("lr", [0.0, 0.1, 0.5, 1.0, 2.0])
def test_an_lr_that_is_meant_is_not_commented_on(lr):
    VSGD(model().parameters(), lr=lr)  # warnings are errors here


def test_a_watched_module_that_never_ran_is_said():
    net, criterion = model(), nn.CrossEntropyLoss()
    optimizer = VSGD(net.parameters())
    optimizer.watch(criterion)
    said = ""
    for x, y in batches(30):
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                optimizer.step()
            except InputError as refusal:
                said += str(refusal)
        said += " ".join(str(one.message) for one in caught)
    assert "CrossEntropyLoss" in said


# --- GANs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["measuring", "following"])
@pytest.mark.parametrize("seed", range(3))
def test_a_gan_with_two_optimizers_stays_finite_and_both_go_on(form, seed):
    torch.manual_seed(seed)
    maker = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
    judge = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    makers, judges = VSGD(maker.parameters()), VSGD(judge.parameters())
    loss_of = nn.functional.binary_cross_entropy_with_logits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one of both diverges may be said
        for _ in range(200):
            noise, real = torch.randn(16, 2), torch.randn(16, 2) * 0.3 + 1

            def judged(noise=noise, real=real):
                made = judge(maker(noise).detach())
                return loss_of(judge(real), torch.ones(16, 1)) + loss_of(made, torch.zeros(16, 1))

            def believed(noise=noise):
                return loss_of(judge(maker(noise)), torch.ones(16, 1))

            for optimizer, closure in ((judges, judged), (makers, believed)):
                if form == "following":
                    optimizer.zero_grad()
                    optimizer.backward(closure())
                    optimizer.step()
                else:
                    optimizer.minimize(closure)
                assert are_finite(maker)
                assert are_finite(judge)
    for optimizer in (makers, judges):
        told = optimizer.explain()
        assert told.steps + sum(told.skipped.values()) == 200
        assert told.steps > 20  # they move; how well a GAN learns is another matter


# --- Attention by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_attention_written_by_hand_skips_no_step_and_learns(seed):
    torch.manual_seed(seed)
    queries, keys, values = (nn.Linear(4, 4) for _ in range(3))
    net = nn.ModuleList([queries, keys, values])
    optimizer = VSGD(net.parameters())
    x = 3 * torch.randn(32, 5, 4)
    y = x[:, :1].expand(32, 5, 4)
    losses = []
    for _ in range(100):

        def closure():
            weights = (3 * queries(x) @ keys(x).transpose(1, 2)).softmax(-1)
            return mse_loss(weights @ values(x), y)

        losses.append(optimizer.minimize(closure).item())
    assert optimizer.explain().skipped == {}
    assert losses[-1] < losses[0]
