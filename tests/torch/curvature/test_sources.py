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
from pesky.torch.loss.again import gradients_after, gradients_of
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
    found = finite_difference(
        partial(gradients_after, partial(gradients_of, loss, None), {}), {theta: gradient}, seed=1
    )[theta]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0.0)
    assert torch.equal(theta, before)


def bent_problem(seed=0):
    """A small network's loss, and its exact Hessian, with cross terms."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"dtype": torch.float64, "generator": generator}
    x, y = torch.randn(5, 2, **sizes), torch.randn(5, 1, **sizes)
    theta = [torch.randn(shape, **sizes).requires_grad_() for shape in ((3, 2), (3,), (1, 3))]

    def loss(*ones):
        a, b, c = ones or theta
        return (torch.tanh(x @ a.T + b) @ c.T - y).square().mean()

    blocks = torch.autograd.functional.hessian(loss, tuple(theta))
    rows = [
        torch.cat([block.reshape(one.numel(), -1) for block in row], 1)
        for one, row in zip(theta, blocks, strict=True)
    ]
    return theta, torch.cat(rows), loss


def flat(values, theta):
    return torch.cat([values[one].flatten() for one in theta])


def test_products_are_the_exact_hessians():
    """A sample is z * Hz for signs z, of which there is one for each entry; both signs of it count."""
    theta, hessian, loss = bent_problem()
    samples = torch.stack([flat(hutchinson(loss(), theta, seed), theta) for seed in range(40)])
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * len(hessian))
    products = signs * (signs @ hessian)
    for sample in samples:
        assert abs(products - sample).amax(1).min() < 1e-12
    assert (samples < 0).any()


def test_mean_squares_over_all_signs_are_the_squared_lengths_of_rows():
    theta, hessian, loss = bent_problem()
    count = 3000
    samples = torch.stack([flat(hutchinson(loss(), theta, seed), theta) for seed in range(count)])
    expected = hessian.square().sum(1)
    error = samples.square().std(0) / count**0.5
    assert torch.all(abs(samples.square().mean(0) - expected) < 8 * error + 1e-12)
    mean_error = samples.std(0) / count**0.5
    assert torch.all(abs(samples.mean(0) - hessian.diagonal()) < 8 * mean_error + 1e-12)


def test_finite_differences_are_hutchinsons_products_with_the_same_signs():
    theta, _, loss = bent_problem()
    for seed in range(10):
        gradients = dict(zip(theta, torch.autograd.grad(loss(), theta), strict=True))
        found = finite_difference(
            partial(gradients_after, partial(gradients_of, loss, None), {}), gradients, seed
        )
        one, other = flat(found, theta), flat(hutchinson(loss(), theta, seed), theta)
        assert abs(one - other).max() < 0.01 * abs(other).max()
        assert (one * other > 0).double().mean() > 0.8


def test_a_tensor_that_the_loss_is_linear_in_has_products_of_zero():
    curved = torch.ones(2, requires_grad=True)
    linear, elsewhere = torch.ones(3, requires_grad=True), torch.ones(1, requires_grad=True)
    found = hutchinson(curved.square().sum() + linear.sum(), [linear, curved, elsewhere], seed=0)
    assert torch.equal(found[linear], torch.zeros(3))
    torch.testing.assert_close(found[curved], torch.full((2,), 2.0))
    assert elsewhere not in found
    assert torch.equal(hutchinson(linear.sum(), [linear], seed=0)[linear], torch.zeros(3))


WAYS = {
    "minimize": (lambda optimizer, loss: optimizer.minimize(loss), "finite-difference"),
    "again": (
        lambda optimizer, loss: (optimizer.backward(loss(), again=loss), optimizer.step()),
        "finite-difference",
    ),
    "backward": (lambda optimizer, loss: (optimizer.backward(loss()), optimizer.step()), "hutchinson"),
}


@pytest.mark.parametrize("way", WAYS)
def test_where_nobody_chose_it_depends_on_what_a_loss_allows(way):
    step, source = WAYS[way]
    for dialect, expected in (("robust", source), ("paper", "bbprop")):
        net = model()
        optimizer = VSGD(net.parameters(), dialect=dialect)
        for x, y in batches(3):
            optimizer.zero_grad()
            step(optimizer, lambda x=x, y=y, net=net: cross_entropy(net(x), y))
        assert list(optimizer.explain().curvature_sources) == [expected]


class Product(torch.autograd.Function):
    """A product that cannot be differentiated, as fused kernels of backward passes cannot."""

    @staticmethod
    def forward(ctx, one, other):
        return one * other

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("derivative for this product is not implemented")


class Once(torch.autograd.Function):
    """tanh, whose backward pass cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return Product.apply(gradient, 1 - y * y)


@pytest.mark.filterwarnings("ignore:bbprop has no rule for OnceBackward")
def test_without_second_derivatives_curvature_is_bbprops():
    net = model()
    optimizer = VSGD(net.parameters())
    x, y = next(batches(1))
    with pytest.warns(UserWarning, match="no second derivatives.*'bbprop'"):
        optimizer.backward(cross_entropy(net[2](Once.apply(net[0](x))), y))
    optimizer.step()
    assert list(optimizer.explain().curvature_sources) == ["bbprop"]
    assert all(optimizer.state[one]["level_square"] > 0 for one in net.parameters())


def test_sparse_gradients_have_curvatures_of_entries_from_the_first_step_on():
    torch.manual_seed(0)
    net = nn.Embedding(5, 3, sparse=True)
    optimizer = VSGD(net.parameters(), slow_start=1)
    for _ in range(12):
        optimizer.minimize(lambda: net(torch.tensor([0, 2, 4])).square().sum())
    assert torch.all(net.weight[[0, 2, 4]].isfinite())
    kept = optimizer.state[net.weight]["mean_curvature"]
    torch.testing.assert_close(kept[[0, 2, 4]], torch.full((3, 3), 2.0), rtol=1e-2, atol=0.0)
    assert torch.all(kept[[1, 3]] == 0)


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

    settings = {"curvature": constant, "init_batches": 1, "slow_start": 1}
    optimizer = VSGD(net.parameters(), **settings)
    train(net, optimizer, 2)
    assert len(calls) == 2
    assert optimizer.state[net[0].bias]["level_square"] == pytest.approx(4)
    optimizer = VSGD(net.parameters(), dialect="paper", **settings)
    train(net, optimizer, 2)
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


def test_dropout_masks_do_not_count_as_a_change_of_the_gradient():
    """A loss that is given had masks of its own: both gradients of the difference are the closure's."""
    levels = []
    for way in ("minimize", "again"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))
        optimizer = VSGD(net.parameters())
        drawn, step = [], WAYS[way][0]
        for x, y in batches(10, size=64):
            step(optimizer, lambda x=x, y=y, net=net: cross_entropy(net(x), y))
            drawn.append(torch.rand(1))
            optimizer.zero_grad()
        found = [optimizer.state[one]["level_square"] ** 0.5 for one in net.parameters()]
        levels.append((torch.tensor(found), torch.cat(drawn)))
    assert torch.all((levels[0][0] / levels[1][0]).log().abs() < 0.4)
    assert torch.equal(levels[0][1], levels[1][1])  # the closure leaves no trace


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
@pytest.mark.parametrize("source", ["bbprop", None])
def test_a_loss_without_curvature_learns_all_the_same(loss_function, by, source):
    """bbprop says that there is none; along random signs a kink may be met, and has a level, or none."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 5, generator=generator)
    y = torch.sign(x[:, :1])
    torch.manual_seed(0)
    net = nn.Linear(5, 1)

    class Loss(nn.Module):
        def forward(self, x, y):
            return loss_function(net(x), y)

    criterion = Loss()
    optimizer = VSGD(net.parameters(), curvature=source)
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

    if source == "bbprop":
        with pytest.warns(UserWarning, match="no curvature of its own"):
            learn()
        expected = "polyak"
    else:
        learn()
        expected = "hutchinson" if by == "backward" else "finite-difference"
    with torch.no_grad():
        assert criterion(x, y).item() < 0.6 * before
    assert list(optimizer.explain().curvature_sources) == [expected]
    assert all(rate < float("inf") for rate in optimizer.rates().values())


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.net, self.reentrant = model(), reentrant

    def forward(self, x):
        hidden = checkpoint(self.net[:2], x.requires_grad_(), use_reentrant=self.reentrant)
        return self.net[2](hidden)


@pytest.mark.parametrize("source", ["bbprop", None])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:bbprop cannot walk")
def test_checkpointed_models_train(reentrant, source):
    net = Checkpointed(reentrant)
    optimizer = VSGD(net.parameters(), curvature=source)
    for x, y in batches(300):
        optimizer.minimize(lambda x=x, y=y: cross_entropy(net(x), y))
    assert accuracy(net.net) > (0.6 if reentrant else 0.8)  # finite differences are noisy
    expected = "finite-difference" if reentrant or source is None else "bbprop"
    assert list(optimizer.explain().curvature_sources) == [expected]
