"""Where curvature comes from, and what happens where it cannot."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, relu
from torch.utils.checkpoint import checkpoint

from pesky.errors import InputError
from pesky.torch import VSGD
from pesky.torch.curvature.sources import finite_difference, hutchinson
from pesky.torch.loss.again import gradients_after
from tests.torch.loops import (
    accuracy,
    batches,
    model,
    same,
    train,
)


def curved_problem(dtype=torch.float64):
    """A loss whose Hessian is diagonal, 2 a: every source must find the same."""
    a = torch.tensor([0.5, 1.0, 4.0], dtype=dtype)
    theta = torch.tensor([1.0, -2.0, 3.0], dtype=dtype, requires_grad=True)
    return theta, 2 * a, lambda: (a * theta**2).sum()


def test_hutchinson_is_exact_on_a_diagonal_hessian():
    theta, expected, loss = curved_problem()
    torch.testing.assert_close(hutchinson(loss(), [theta], seed=1)[theta], expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_finite_differences_are_exact_on_a_diagonal_hessian(dtype, tolerance):
    theta, expected, loss = curved_problem(dtype)
    before = theta.detach().clone()
    (gradient,) = torch.autograd.grad(loss(), theta)
    found = finite_difference(partial(gradients_after, loss, None), {theta: gradient}, seed=1)[theta]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0.0)
    assert torch.equal(theta, before)


@pytest.mark.parametrize("source", ["bbprop", "finite-difference", "hutchinson"])
def test_every_source_trains(source):
    net = model()
    optimizer = VSGD(net.parameters(), curvature=source)
    train(net, optimizer, 300)
    assert accuracy(net) > 0.8
    assert list(optimizer.explain().curvature_sources) == [source]


def test_a_function_of_the_users_own():
    net = model()
    calls = []

    def constant(loss, params):
        calls.append(loss.item())
        return [torch.full_like(one, 2.0) for one in params]

    optimizer = VSGD(net.parameters(), curvature=constant, init_batches=1, slow_start=1)
    train(net, optimizer, 2)
    assert len(calls) == 2
    assert torch.all(optimizer.state[net[0].bias]["mean_curvature"] == 2)


@pytest.mark.parametrize("wrong", [lambda loss, params: [], lambda loss, params: [torch.ones(7)] * 4])
def test_a_function_that_returns_something_else_is_refused(wrong):
    net = model()
    with pytest.raises(InputError, match="curvature must return"):
        train(net, VSGD(net.parameters(), curvature=wrong), 1)


def test_the_second_evaluation_leaves_no_trace():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    twin = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    twin.load_state_dict(net.state_dict())
    optimizer = VSGD(net.parameters(), curvature="finite-difference", init_batches=5)
    losses = []

    def closure(network, x, y):
        loss = cross_entropy(network(x), y)
        losses.append(loss.item())
        return loss

    torch.manual_seed(3)
    for x, y in batches(4):
        optimizer.minimize(lambda x=x, y=y: closure(net, x, y))
    drawn = torch.rand(3)
    twice, losses = losses, []
    torch.manual_seed(3)
    for x, y in batches(4):
        closure(twin, x, y)
    assert torch.equal(drawn, torch.rand(3))
    assert twice[0::2] == losses
    assert twice[1] == pytest.approx(twice[0], rel=0.1)  # the same dropout mask
    assert same(net.buffers(), twin.buffers())


def test_finite_differences_need_the_loss_again():
    net = model()
    optimizer = VSGD(net.parameters(), curvature="finite-difference")
    x, y = next(batches(1))
    with pytest.raises(InputError, match="again=closure"):
        optimizer.backward(cross_entropy(net(x), y))
    optimizer.backward(cross_entropy(net(x), y), again=lambda: cross_entropy(net(x), y))
    optimizer.step()
    assert optimizer.counters["steps"] == 1


def hinge(output, target):
    return relu(1 - output * target).mean()


@pytest.mark.parametrize("loss_function", [l1_loss, hinge])
@pytest.mark.parametrize("by", ["minimize", "backward", "watch"])
def test_a_loss_without_curvature_learns_all_the_same(loss_function, by):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 5, generator=generator)
    y = torch.sign(x[:, :1])
    torch.manual_seed(0)
    net = nn.Linear(5, 1)

    class Loss(nn.Module):
        def forward(self, x, y):
            return loss_function(net(x), y)

    criterion = Loss()
    optimizer = VSGD(net.parameters())
    if by == "watch":
        optimizer.watch(criterion)
    before = criterion(x, y).item()

    def learn():
        for _ in range(300):
            k = torch.randint(0, 500, (16,), generator=generator)
            if by == "minimize":
                optimizer.minimize(lambda k=k: criterion(x[k], y[k]))
                continue
            optimizer.zero_grad()
            loss = criterion(x[k], y[k])
            optimizer.backward(loss) if by == "backward" else loss.backward()
            optimizer.step()

    with pytest.warns(UserWarning, match="no curvature of its own"):
        learn()
    with torch.no_grad():
        assert criterion(x, y).item() < 0.6 * before
    assert list(optimizer.explain().curvature_sources) == ["polyak"]
    assert all(rate < float("inf") for rate in optimizer.rates().values())


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.net, self.reentrant = model(), reentrant

    def forward(self, x):
        hidden = checkpoint(self.net[:2], x.requires_grad_(), use_reentrant=self.reentrant)
        return self.net[2](hidden)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:bbprop cannot walk")
def test_checkpointed_models_train(reentrant):
    net = Checkpointed(reentrant)
    optimizer = VSGD(net.parameters())
    for x, y in batches(300):
        optimizer.minimize(lambda x=x, y=y: cross_entropy(net(x), y))
    assert accuracy(net.net) > (0.6 if reentrant else 0.8)  # finite differences are noisy
    expected = "finite-difference" if reentrant else "bbprop"
    assert list(optimizer.explain().curvature_sources) == [expected]
