"""What the scale of the robust dialect is where it can be computed, and what it does not depend on."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from pesky.torch import VSGD
from tests.torch.loops import batches, close, step_in_form
from tests.torch.step.quadratics import rotated

D = torch.float64


def on_a_quadratic(hessian, start, noise, steps, **options):
    """Return the optimizer and theta after steps by `minimize`; batches differ in their centre."""
    theta = nn.Parameter(start.clone())
    optimizer = VSGD([theta], curvature=lambda loss, ones: [hessian.diagonal()], **options)
    for _ in range(steps):
        centre = noise * torch.randn(len(start), dtype=D)
        optimizer.minimize(lambda c=centre: (theta - c) @ hessian @ (theta - c) / 2)
    return optimizer, theta


# --- Known values ---------------------------------------------------------------------------------


def curvature_of(hessian, v):
    """Return the curvatures of entries, from the level of the diagonal and squared gradients."""
    level = hessian.diagonal().square().mean().sqrt()
    return level * (v / v.mean()).sqrt().clamp(min=1)


def test_without_noise_where_gradients_are_of_one_size_a_separable_quadratic_has_scale_one():
    start = 3 * torch.ones(50, dtype=D) * (-1) ** torch.arange(50)
    optimizer, _ = on_a_quadratic(2.5 * torch.eye(50, dtype=D), start, 0.0, 100, lr=0.0)
    assert optimizer.collective.scale == pytest.approx(1, rel=1e-6)


def test_where_a_loss_does_not_bend_the_scale_grows_and_at_most_doubles_in_a_step():
    """Slope over curvature would be infinite, and the next batch, which bends, would meet that step."""
    theta = nn.Parameter(torch.zeros(3, dtype=D))
    optimizer = VSGD([theta], curvature=lambda loss, ones: [torch.full((3,), 100.0)], init_batches=2)
    scales = []
    for _ in range(40):
        optimizer.minimize(lambda: F.relu(1000 - theta).sum())
        scales.append(optimizer.collective.scale)
    growth = torch.tensor(scales[3:]) / torch.tensor(scales[2:-1])
    assert growth.max() == 2  # where the first measurement says that there is no end
    assert growth.min() > 1.05


@pytest.mark.parametrize("share", [0.8, 0.5, 0.2])
def test_with_noise_the_scale_is_that_of_the_share_of_signal_in_the_direction(share):
    """With p = r g / h, where r is g^2/v, it is E[r g^2 / h] / E[r^2 g^2 H / h^2].

    With known moments all r are the share, and where all h are H the scale is its inverse. Estimated
    over memories of a few samples, r varies and goes with g^2, which weighs its larger values more: the
    scale is lower. Curvatures above H, where gradients are large, make it higher.
    """
    noise = (1 / share - 1) ** 0.5
    start = torch.ones(2000, dtype=D)
    hessian = 0.7 * torch.eye(2000, dtype=D)
    optimizer, theta = on_a_quadratic(hessian, start, noise, 150, lr=0.0)
    state = optimizer.state[theta]
    v = state["mean_square"]
    rate = state["mean_gradient"] ** 2 / v / curvature_of(hessian, v)
    expected = ((rate * v).sum() / (0.7 * rate**2 * v).sum()).item()
    assert optimizer.collective.scale == pytest.approx(expected, rel=0.1)
    assert 1 < optimizer.collective.scale < 1.5 / share


def test_on_a_rotated_quadratic_the_scale_is_the_closed_form():
    for seed in range(3):
        hessian, start = rotated(seed)
        optimizer, _ = on_a_quadratic(hessian, start, 0.0, 150, lr=0.0)
        gradient = hessian @ start
        p = gradient / curvature_of(hessian, gradient.square())
        expected = gradient @ p / (p @ hessian @ p)
        assert optimizer.collective.scale == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_on_the_way_down_the_scale_is_the_ratio_of_means(seed):
    """Both look back 20 steps and more: while slopes fall, the scale is that of earlier steps."""
    hessian, start = rotated(seed)
    theta = nn.Parameter(start.clone())
    optimizer = VSGD([theta], curvature=lambda loss, ones: [hessian.diagonal()])
    excess, slopes, bends = [], [], []
    for _ in range(120):
        before = optimizer.state[theta].get("iterate", theta.detach()).clone()
        optimizer.minimize(lambda: theta @ hessian @ theta / 2)
        if optimizer.collective.averaged:
            state, length = optimizer.state[theta], optimizer.collective.scale
            p = (before - state["iterate"]) / (length * optimizer.collective.caution)
            slopes.append(float(p @ hessian @ before))
            bends.append(float(p @ hessian @ p))
        excess.append(float(theta.detach() @ hessian @ theta.detach() / 2))
    assert max(excess) <= excess[0] * (1 + 1e-9)
    assert excess[-1] < 0.05 * excess[0]
    weights = 0.96 ** torch.arange(len(slopes) - 1, -1, -1, dtype=D)
    means = [float(weights @ torch.tensor(ones, dtype=D)) for ones in (slopes, bends)]
    ratio = optimizer.collective.scale * means[1] / means[0]
    assert 0.4 < ratio < 1.3  # the first step's curvature is counted twice


# --- Invariances ----------------------------------------------------------------------------------


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(16, 10), (16,), (3, 16), (3,)]
    return [0.3 * torch.randn(shape, generator=generator, dtype=D) for shape in shapes]


def run(start, forward, form, *, factor=1.0, steps=60, **options):
    """Return the parameters after steps on the batches of `loops`."""
    theta = [nn.Parameter(one.clone()) for one in start]
    optimizer = VSGD(theta, **options)
    for x, y in batches(steps):

        def loss(x=x, y=y):
            return factor * F.cross_entropy(forward(theta, x.double()), y)

        step_in_form(form, optimizer, loss)
    assert optimizer.counters["form"] == form
    assert optimizer.collective.averaged > 40
    return [one.detach() for one in theta]


def network(theta, x):
    a, b, c, d = theta
    return F.linear(torch.tanh(F.linear(x, a, b)), c, d)


both_forms = pytest.mark.parametrize("form", ["measuring", "following"])
tight = {"rtol": 1e-5, "atol": 1e-7}


@both_forms
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_units_of_the_loss(form, granularity, factor):
    ends = [run(weights(), network, form, factor=k, granularity=granularity) for k in (1.0, factor)]
    close(*ends, **tight)


@both_forms
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_a_unit_that_all_tensors_share(form, granularity):
    def rescaled(theta, x):
        return network([8 * one for one in theta], x)

    plain = run(weights(), network, form, granularity=granularity)
    found = run([one / 8 for one in weights()], rescaled, form, granularity=granularity)
    close(plain, [8 * one for one in found], **tight)


@both_forms
@pytest.mark.parametrize("granularity", ["element", "block"])
def test_units_of_each_tensor_with_bbprop(form, granularity):
    """Along random signs, how far each tensor moves depends on its unit, and so do all levels."""
    options = {"granularity": granularity, "curvature": "bbprop"}
    units = [4.0, 0.01, 300.0, 1e-3]

    def rescaled(theta, x):
        return network([unit * one for unit, one in zip(units, theta, strict=True)], x)

    start = [one / unit for unit, one in zip(units, weights(), strict=True)]
    plain = run(weights(), network, form, **options)
    found = run(start, rescaled, form, **options)
    close(plain, [unit * one for unit, one in zip(units, found, strict=True)], **tight)


@both_forms
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_order_of_units_and_of_tensors_with_bbprop(form, granularity):
    """Random signs go by the order, too."""
    options = {"granularity": granularity, "curvature": "bbprop"}
    order = torch.randperm(16)
    a, b, c, d = weights()

    def turned(theta, x):
        return network(theta[::-1], x)

    plain = run([a, b, c, d], network, form, **options)
    found = run([d, c[:, order], b[order], a[order]], turned, form, **options)
    expected = [plain[3], plain[2][:, order], plain[1][order], plain[0][order]]
    close(expected, found, **tight)


# --- Nothing diverges -----------------------------------------------------------------------------


def losses_on_a_small_network(form, size, width, seed, factor=1.0):
    """Return held-out losses before and after training on batches of this size, and the network."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
    teacher = torch.randn(4)

    def batch(count):
        x = torch.randn(count, 4)
        return x, (x @ teacher > 0).long()

    held_out = batch(500)
    losses = []

    def note():
        with torch.no_grad():
            losses.append(F.cross_entropy(net(held_out[0]), held_out[1]).item())

    note()
    optimizer = VSGD(net.parameters())
    for _ in range(60 if size * width < 2**16 else 20):
        x, y = batch(size)

        def loss(x=x, y=y):
            return factor * F.cross_entropy(net(x), y)

        step_in_form(form, optimizer, loss)
    note()
    return losses, net


powers = st.integers(0, 12).map(lambda power: 2**power)


@pytest.mark.slow
@both_forms
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=powers,
    width=powers,
    factor=st.floats(-6, 6).map(lambda power: 10**power),
    seed=st.integers(0, 2**30),
)
def test_nothing_diverges(form, size, width, factor, seed):
    if form == "measuring":
        size = max(size, 4)  # see below
    (before, after), net = losses_on_a_small_network(form, size, width, seed, factor)
    assert all(one.isfinite().all() for one in net.parameters())
    assert after < 1.5 * before + 0.2


@pytest.mark.slow
def test_batches_of_one_do_no_harm_at_first():
    losses = [losses_on_a_small_network("measuring", 1, 16, seed)[0] for seed in range(30)]
    assert all(after < 1.5 * before + 0.2 for before, after in losses)
