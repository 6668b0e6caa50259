"""Away from the CPU: the same steps, with one wait and as many operations for few tensors as for many.

No GPU is needed: `elsewhere.py` has a device of our own.
"""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from pesky.torch import VSGD
from pesky.torch.loss.backward import Backward
from tests.torch.elsewhere import Elsewhen, fetched, send, sent

ENTRIES = 2_000  # of all tensors together
INITIAL = 1
SETTLED = {"moves": 1001, "measured": 1000}  # neither losses nor curvature are due in the next step

SETTINGS = {
    "elements": {},
    "blocks": {"granularity": "block"},
    "one rate": {"granularity": "global"},
    "L2": {"weight_decay": 0.01},
    "decoupled decay": {"weight_decay": 0.01, "decoupled_weight_decay": True},
    "lr": {"lr": 0.5},
    "bfloat16": {"dtype": torch.bfloat16},
}


@pytest.fixture
def device():
    with Elsewhen() as mode:
        yield mode


def settled(device, count, form, dtype=torch.float32, **settings):
    """Take some steps and one that measures nothing, of which the last one's counts are left."""
    torch.manual_seed(0)
    shape = (ENTRIES // count,)
    parameters = [sent(torch.randn(shape).to(dtype).requires_grad_()) for _ in range(count)]
    weights = [sent(torch.rand(shape).to(dtype) + 1) for _ in range(count)]
    optimizer = VSGD(parameters, init_batches=INITIAL, **settings)

    def loss():
        with device.paused():
            return (
                torch.stack(torch._foreach_norm(torch._foreach_mul(parameters, weights))).square().mean()
            )

    for step in range(INITIAL + 3):
        if step == INITIAL + 1:
            optimizer.counters |= SETTLED
        device.clear()
        if form == "measuring":
            optimizer.minimize(loss)
        else:
            optimizer.zero_grad()
            optimizer.backward(loss())
            optimizer.step()
    assert not optimizer.counters["skipped"]
    return device.operations.total(), device.waits.total()


@pytest.fixture
def uncounted_backward(device, monkeypatch):
    """A model's own passes are no part of an update."""
    differentiate = device.uncounted(Backward._differentiate)
    monkeypatch.setattr(Backward, "_differentiate", lambda *given: differentiate(*given))


@pytest.mark.parametrize("form", ["measuring", "following"])
@pytest.mark.parametrize("name", SETTINGS)
def test_many_small_tensors_take_no_more_operations_than_few(device, uncounted_backward, form, name):
    few, waits_of_few = settled(device, 20, form, **SETTINGS[name])
    many, waits_of_many = settled(device, 200, form, **SETTINGS[name])
    assert many < 1.1 * few
    assert waits_of_few <= 1
    assert waits_of_many <= 1


@pytest.mark.parametrize("granularity", ["element", "block"])
def test_an_update_of_the_papers_is_grouped_too(device, uncounted_backward, granularity):
    settings = {"dialect": "paper", "curvature": "hutchinson", "curvature_every": 8}
    counts = [
        settled(device, count, "following", granularity=granularity, **settings) for count in (20, 200)
    ]
    assert counts[1][0] < 1.1 * counts[0][0]
    assert max(waits for _, waits in counts) <= 1


# --- The same steps as on the CPU ---------------------------------------------------------------------


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def trained(net, place, form, steps=40, **settings):
    if form == "paper":
        settings |= {"dialect": "paper", "curvature": "hutchinson"}
    optimizer = VSGD(net.parameters(), init_batches=3, **settings)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(16, 6, generator=generator, dtype=torch.float64)
        x, y = place(x), place((x[:, 0] > 0).long() + (x[:, 1] > 0).long())

        def loss(x=x, y=y):
            return cross_entropy(net(x), y)

        if form == "following":
            optimizer.zero_grad()
            optimizer.backward(loss())
            optimizer.step()
        else:
            optimizer.minimize(loss)
    return optimizer


@pytest.mark.parametrize("form", ["paper", "measuring", "following"])
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "bfloat16"])
def test_training_elsewhere_is_that_of_the_kernels(device, form, name):
    ours, theirs = send(network()), network()
    trained(ours, sent, form, **SETTINGS[name])
    trained(theirs, torch.Tensor.clone, form, **SETTINGS[name])
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(fetched(one.detach()), other.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
@pytest.mark.parametrize("form", ["paper", "measuring", "following"])
def test_a_gradient_that_is_not_finite_harms_nothing(device, form, value):
    """It is found out after new averages were computed, and before they are anybody's."""
    net = send(network())
    optimizer = trained(net, sent, form)

    def kept():
        kinds = ("mean_gradient", "mean_square", "mean_curvature", "memory")
        states = [optimizer.state[one] for one in net.parameters()]
        tensors = [state[kind] for state in states for kind in kinds if kind in state]
        return [
            fetched(one).clone() if isinstance(one, torch.Tensor) else torch.tensor(one)
            for one in tensors
        ]

    before = kept()
    optimizer.counters |= {"measured": optimizer.counters["moves"]}
    form = "following" if form == "paper" else form
    x = sent(torch.randn(4, 6, dtype=torch.float64))
    scale = sent(torch.tensor(value, dtype=torch.float64))
    if form == "measuring":
        optimizer.minimize(lambda: _Spoilt.apply(net(x).square().mean(), scale))
    else:
        optimizer.zero_grad()
        optimizer.backward(_Spoilt.apply(net(x).square().mean(), scale))
        optimizer.step()
    assert sum(optimizer.counters["skipped"].values()) == 1
    assert all(torch.equal(*pair) for pair in zip(before, kept(), strict=True))
    assert all(fetched(one.detach()).isfinite().all() for one in net.parameters())


class _Spoilt(torch.autograd.Function):
    """A loss whose value is sound and whose gradient is not."""

    @staticmethod
    def forward(ctx, loss, scale):
        ctx.scale = scale
        return loss.clone()

    @staticmethod
    def backward(ctx, upstream):
        return upstream * ctx.scale, None


def test_a_parameter_written_to_elsewhere_is_taken_for_changed(device):
    net = send(network())
    optimizer = trained(net, sent, "measuring", steps=30)
    assert optimizer.collective.averaged > 0
    with torch.no_grad():
        next(net.parameters()).mul_(1.5)
    x = sent(torch.randn(4, 6, dtype=torch.float64))
    optimizer.minimize(lambda: net(x).square().mean())
    assert optimizer.collective.averaged <= 1


# --- Types and shapes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("form", ["paper", "measuring", "following"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_parameters_of_all_types_without_dimensions_and_without_entries_learn(
    device, dtype, form, is_elsewhere
):
    place = sent if is_elsewhere else deepcopy
    shapes = [(), (3,), (0,), (2, 0), (1, 1)]
    parameters = [place(torch.full(shape, 2.0, dtype=dtype).requires_grad_()) for shape in shapes]
    settings = {"dialect": "paper", "curvature": "hutchinson"} if form == "paper" else {}
    optimizer = VSGD(parameters, init_batches=2, slow_start=1, **settings)

    def loss():
        goals = [torch.ones_like(one) for one in parameters]
        pairs = list(zip(parameters, goals, strict=True))
        there = [mse_loss(one.float(), goal.float()) for one, goal in pairs if one.numel()]
        empty = sum(one.float().sum() for one in parameters if not one.numel())
        return torch.stack(there).sum() + empty

    for _ in range(60):
        if form == "following":
            optimizer.zero_grad()
            optimizer.backward(loss())
            optimizer.step()
        else:
            optimizer.minimize(loss)
    far = 0.5 if form == "following" else 0.1
    for one in parameters:
        found = fetched(one.detach()).double()
        assert ((found - 1).abs() < far).all(), found
