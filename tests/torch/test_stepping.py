"""What a step makes of groups, layouts, accumulated and clipped gradients."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pesky.torch import VSGD
from tests.torch.loops import (
    DIALECTS,
    FORMS,
    batches,
    close,
    convolutional,
    dialect_of,
    model,
    paper,
    parameters,
    same,
    train,
    train_by_backward,
    train_in_form,
)


def test_a_group_added_later_has_initial_batches_of_its_own():
    net = model()
    optimizer = VSGD(net[2].parameters(), init_batches=5)
    train(net, optimizer, 8)
    optimizer.add_param_group({"params": net[0].parameters(), "granularity": "block"})
    before = parameters(net)
    train(net, optimizer, 5)
    assert same(before[:2], parameters(net)[:2])
    assert not same(before[2:], parameters(net)[2:])
    train(net, optimizer, 1)
    assert not same(before[:2], parameters(net)[:2])


def test_groups_differ_in_rate_decay_and_floor():
    net = model()
    groups = [
        {"params": [net[0].weight], "weight_decay": 0.5},
        {"params": [net[0].bias], "granularity": "block", "curvature_floor": 1e9},
        {"params": net[2].parameters(), "lr": 0.0},
    ]
    optimizer = VSGD(groups)
    before = parameters(net)
    train(net, optimizer, 20)
    assert torch.equal(net[2].weight, before[2])
    assert torch.allclose(net[0].bias, before[1], atol=1e-7)
    assert not torch.equal(net[0].weight, before[0])


def test_a_scheduler_multiplies_the_rates():
    net = model()
    optimizer = VSGD(net.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 if epoch < 1 else 0.0)
    train(net, optimizer, 15)
    scheduler.step()
    before = parameters(net)
    train(net, optimizer, 3)
    assert same(before, parameters(net))


@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_strided_parameters_learn_like_contiguous_ones(granularity):
    net, other = model(), model()
    other[0].weight.data = other[0].weight.data.t().contiguous().t()
    train(net, paper(net, granularity=granularity))
    train(other, paper(other, granularity=granularity))
    close(parameters(net), parameters(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_layout_that_changes_on_the_way_makes_no_difference(form):
    ends = []
    for layout in (torch.channels_last, torch.contiguous_format):
        net = convolutional().to(memory_format=torch.channels_last)
        optimizer = VSGD(net.parameters(), dialect=dialect_of(form))
        train_in_form(form, net, optimizer, 60)
        net.to(memory_format=layout)
        train_in_form(form, net, optimizer, 20, seed=2)
        ends.append(parameters(net))
    close(*ends, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_accumulated_batches_are_one_large_batch(dialect):
    net, other = model(), model()
    train_by_backward(net, VSGD(net.parameters(), dialect=dialect), 20)
    accumulating = VSGD(other.parameters(), dialect=dialect)
    for x, y in batches(20):
        accumulating.zero_grad()
        for half in (slice(0, 4), slice(4, 8)):
            accumulating.backward(cross_entropy(other(x[half]), y[half]) / 2)
        accumulating.step()
    close(parameters(net), parameters(other), rtol=1e-3, atol=1e-4)


def test_clipping_changes_gradients_only():
    net = model()
    optimizer = paper(net, init_batches=1, even_start=False)
    x, y = next(batches(1))
    optimizer.backward(cross_entropy(net(x), y))
    bend = optimizer._pending.values[net[0].weight].clone()
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    optimizer.step()
    state = optimizer.state[net[0].weight]
    torch.testing.assert_close(state["mean_curvature"], bend * optimizer.slow_start_factor())
    assert state["mean_gradient"].norm() < 2e-3
