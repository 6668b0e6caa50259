"""What a user may give to VSGD, and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pesky.errors import InputError
from pesky.torch import VSGD
from tests.torch.loops import (
    batches,
    model,
    train,
)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float8_e4m3fn])
def test_parameters_of_other_types_are_refused_by_name(dtype):
    odd = torch.zeros(2, 3, dtype=dtype)
    named = [("first", nn.Parameter(torch.zeros(2))), ("odd.weight", odd)]
    with pytest.raises(InputError, match=rf"'odd.weight' of type {dtype} and shape \(2, 3\)"):
        VSGD(named)
    optimizer = VSGD(named[:1])
    with pytest.raises(InputError, match=f"of type {dtype}"):
        optimizer.add_param_group({"params": named[1:]})
    assert len(optimizer.param_groups) == 1


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
        ({"decoupled_weight_decay": 1}, "decoupled_weight_decay must be True or False; got 1"),
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
