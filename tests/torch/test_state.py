"""Checkpoints, copies, groups that come later, parameters that come and go, types."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pesky.errors import InputError
from pesky.torch import VSGD
from tests.torch.loops import (
    DIALECTS,
    FORMS,
    batches,
    close,
    dialect_of,
    model,
    paper,
    parameters,
    same,
    step_in_form,
    through_file,
    train,
    train_by_backward,
    train_in_form,
)


def test_a_state_dict_is_not_changed_by_going_on():
    net = model()
    optimizer = VSGD(net.parameters(), granularity="global")
    train(net, optimizer, 15)
    other = model()
    copied = VSGD(other.parameters(), granularity="global")
    copied.load_state_dict(optimizer.state_dict())
    averages = copied.state[other[0].weight]["mean_gradient"].clone()
    power = copied.param_groups[0]["shared"]["power"]
    train(net, optimizer, 5)
    assert torch.equal(averages, copied.state[other[0].weight]["mean_gradient"])
    assert copied.param_groups[0]["shared"]["power"] == power


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_averages_in_float32(dtype):
    net = model(dtype=dtype)
    optimizer = VSGD(net.parameters())
    before = parameters(net)
    train(net, optimizer, 20, dtype=dtype)
    state = optimizer.state[net[0].weight]
    assert state["mean_square"].dtype == torch.float32
    assert net[0].weight.dtype == dtype
    assert not same(before, parameters(net))
    other = VSGD(net.parameters())
    other.load_state_dict(through_file(optimizer.state_dict()))
    assert torch.equal(other.state[net[0].weight]["mean_square"], state["mean_square"])


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 5)), nn.Conv2d(1, 6, 2), nn.Tanh(), nn.Conv2d(6, 4, (1, 2)), nn.Flatten()
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_of_another_layout_goes_on_alike(form):
    net = convolutional().to(memory_format=torch.channels_last)
    other = convolutional()
    optimizer = VSGD(net.parameters(), dialect=dialect_of(form))
    train_in_form(form, net, optimizer, 60)
    other.load_state_dict(net.state_dict())
    resumed = VSGD(other.parameters(), dialect=dialect_of(form))
    resumed.load_state_dict(through_file(optimizer.state_dict()))
    for each, its in ((net, optimizer), (other, resumed)):
        train_in_form(form, each, its, 20, seed=2)
    close(parameters(net), parameters(other), rtol=1e-3, atol=1e-4)


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


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_of_float32_goes_on_in_float64(form):
    net = model()
    optimizer = VSGD(net.parameters(), dialect=dialect_of(form))
    train_in_form(form, net, optimizer, 30)
    wide = model(dtype=torch.float64)
    wide.load_state_dict(net.state_dict())
    resumed = VSGD(wide.parameters(), dialect=dialect_of(form))
    resumed.load_state_dict(through_file(optimizer.state_dict()))
    kept = [one for state in resumed.state.values() for one in state.values()]
    assert all(one.dtype == torch.float64 for one in kept if isinstance(one, torch.Tensor))
    for x, y in batches(20, seed=2):
        step_in_form(form, resumed, lambda x=x, y=y: cross_entropy(wide(x.double()), y))
    train_in_form(form, net, optimizer, 20, seed=2)
    close([one.float() for one in parameters(wide)], parameters(net), rtol=1e-2, atol=1e-3)


def test_complex_parameters_are_refused():
    with pytest.raises(InputError, match=r"view_as_real"):
        VSGD([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"granularity": "row"}, "granularity must be one of 'element'"),
        ({"dialect": "robust2"}, "dialect"),
        ({"curvature": "exact"}, "curvature must be one of 'bbprop'"),
        ({"curvature_every": 0}, "curvature_every"),
        ({"init_batches": 0}, "init_batches"),
        ({"slow_start": 0.5}, "slow_start"),
        ({"even_start": 1}, "even_start must be True or False"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"curvature_floor": 0}, "curvature_floor"),
        ({"lr": -1}, "lr"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        VSGD(model().parameters(), **settings)


def test_hooks_run():
    net, calls = model(), []
    optimizer = VSGD(net.parameters())
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(net, optimizer, 1)
    assert calls == ["before", "after"]


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


def test_a_step_without_curvature_tells_how_to_get_it():
    net = model()
    optimizer = VSGD(net.parameters())
    x, y = next(batches(1))
    cross_entropy(net(x), y).backward()
    with pytest.raises(InputError, match=r"minimize.*backward.*watch"):
        optimizer.step()


def test_a_loss_that_is_none_is_refused():
    optimizer = VSGD(model().parameters())
    with pytest.raises(InputError, match="loss must be"):
        optimizer.backward(torch.zeros(3, requires_grad=True))
    with pytest.raises(InputError, match="without grad"):
        optimizer.minimize(lambda: torch.zeros(()))
