"""Loss scaling and autocast."""

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from pesky.errors import InputError
from pesky.torch import VSGD
from tests.torch.loops import (
    DIALECTS,
    accuracy,
    batches,
    close,
    model,
    parameters,
    same,
    train_by_backward,
)

WAYS = ("scaled loss", "scaler", "watch")


def amp_training(net, way, steps, *, unscale=False, spoil=None, told=True, autocast=False, **settings):
    """Train with a GradScaler; `spoil` is the step whose gradient overflows."""
    scaler, criterion = GradScaler("cpu", init_scale=1024.0), nn.CrossEntropyLoss()
    optimizer = VSGD(net.parameters(), **settings)
    if way == "watch":
        optimizer.watch(criterion, scaler=scaler if told else None)
    for step, (x, y) in enumerate(batches(steps)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = criterion(net(x), y)
        if way == "scaled loss":
            optimizer.backward(scaler.scale(loss))
        elif way == "scaler":
            optimizer.backward(loss, scaler=scaler)
        else:
            scaler.scale(loss).backward()
        if step == spoil:
            net[0].bias.grad[0] = float("inf")
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1e9)
        scaler.step(optimizer)
        scaler.update()
    return optimizer


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_scaling_the_loss_changes_nothing(way, unscale, dialect):
    net, other = model(), model()
    train_by_backward(net, VSGD(net.parameters(), dialect=dialect), 30)
    amp_training(other, way, 30, unscale=unscale, dialect=dialect)
    close(parameters(net), parameters(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_the_scaler_skips_leaves_everything(way, unscale):
    net, other = model(), model()
    amp_training(net, way, 14, unscale=unscale)
    optimizer = amp_training(other, way, 15, unscale=unscale, spoil=14)
    assert same(parameters(net), parameters(other))
    assert optimizer.explain().skipped == {"the loss scaler found inf or nan": 1}


def test_unscaled_gradients_with_curvature_of_unknown_scale_are_refused():
    with pytest.raises(InputError, match=r"watch\(module, scaler=scaler\)"):
        amp_training(model(), "watch", 1, unscale=True, told=False)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_constant_factor_is_no_loss_scale_without_a_scaler(dialect):
    net, other = model(), model()
    train_by_backward(net, VSGD(net.parameters(), dialect=dialect), 20)
    optimizer = VSGD(other.parameters(), dialect=dialect)
    train_by_backward(other, optimizer, 20, factor=torch.tensor(2.0))
    close(parameters(net), parameters(other), rtol=1e-3, atol=1e-4)  # the rates undo the factor


@pytest.mark.parametrize("way", WAYS)
def test_autocast_trains(way):
    net = model()
    optimizer = amp_training(net, way, 900, autocast=True)
    assert accuracy(net) > 0.8
    assert list(optimizer.explain().curvature_sources) == ["hutchinson"]
