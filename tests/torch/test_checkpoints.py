"""Checkpoints: a state goes on in another layout and type, and is nobody else's."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from pesky.torch import VSGD
from tests.torch.loops import (
    FORMS,
    batches,
    close,
    convolutional,
    dialect_of,
    model,
    parameters,
    same,
    step_in_form,
    through_file,
    train,
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


def test_a_checkpoint_with_previous_iterates_goes_on_without_them():
    net, other = model(), model()
    optimizer, resumed = VSGD(net.parameters()), VSGD(other.parameters())
    train(net, optimizer, 30)
    other.load_state_dict(net.state_dict())
    old = optimizer.state_dict()
    for state in old["state"].values():
        state["previous"] = torch.full_like(state["iterate"], float("nan"))
    resumed.load_state_dict(through_file(old))
    assert all("previous" not in state for state in resumed.state.values())
    assert all("previous" in state for state in old["state"].values())
    for state in optimizer.state.values():
        del state["previous"]  # a state_dict shares them
    train(net, optimizer, 20, seed=2)
    train(other, resumed, 20, seed=2)
    assert same(parameters(net), parameters(other))
