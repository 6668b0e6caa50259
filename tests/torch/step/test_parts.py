"""Gradients and curvatures that cannot be used: the step is skipped whole, a dead parameter rests."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from pesky.torch import VSGD
from tests.torch.loops import (
    FORMS,
    batches,
    close,
    dialect_of,
    model,
    parameters,
    same,
    train,
    train_in_form,
)


@pytest.mark.parametrize("what", ["gradient", "curvature", "square"])
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
@pytest.mark.parametrize("form", FORMS)
def test_a_sample_that_is_not_finite_is_skipped_whole(what, granularity, form):
    net = model()
    dialect = dialect_of(form)
    optimizer = VSGD(net.parameters(), granularity=granularity, dialect=dialect, curvature_every=1)
    train_in_form(form, net, optimizer, 14)
    earlier = parameters(net)
    train_in_form(form, net, optimizer, 1, seed=2)
    before = parameters(net)
    if form == "measuring":
        earlier = [state["average"].clone() for state in optimizer.state.values()]
    averages = [state["mean_gradient"].clone() for state in optimizer.state.values()]
    x, y = next(batches(1))

    def loss():
        return cross_entropy(net(x), y)

    def step():
        optimizer.zero_grad()
        optimizer.backward(loss(), again=None if form == "following" else loss)
        if what == "curvature":
            optimizer._pending.values[net[2].bias][1] = float("nan")
        else:
            net[2].bias.grad[1] = float("inf") if what == "gradient" else 1e25
        optimizer.step()

    step()
    assert same(parameters(net), before)
    assert same([state["mean_gradient"] for state in optimizer.state.values()], averages)
    explanation = optimizer.explain()
    assert sum(explanation.skipped.values()) == 1
    assert ("curvature" if what == "curvature" else "gradient") in next(iter(explanation.skipped))
    assert "skipped: " in str(explanation)
    step()  # of two in a row, the last step may be the cause: the robust dialect goes back to before it
    close(parameters(net), before if form == "paper" else earlier, rtol=0.0, atol=1e-6)
    assert same([state["mean_gradient"] for state in optimizer.state.values()], averages)


def test_initial_batches_that_are_not_finite_do_not_count():
    net = model()
    optimizer = VSGD(net.parameters(), init_batches=3)
    train(net, optimizer, 2)
    before = parameters(net)
    x, y = next(batches(1))
    optimizer.minimize(lambda: cross_entropy(net(x * float("nan")), y))
    train(net, optimizer, 1)
    assert same(before, parameters(net))
    train(net, optimizer, 1)
    assert not same(before, parameters(net))


def test_a_dead_parameter_rests():
    net = model()
    spare = nn.Parameter(torch.ones(3))
    optimizer = VSGD([*net.parameters(), spare])
    for x, y in batches(20):
        optimizer.minimize(lambda x=x, y=y: cross_entropy(net(x), y) + 0 * mse_loss(spare, spare * 0))
    assert torch.all(spare == 1)
