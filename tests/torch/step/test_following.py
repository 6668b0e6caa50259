"""The robust dialect without a second evaluation: the scale follows the gradients after each step."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pesky.torch import VSGD
from pesky.torch.step import following
from pesky.torch.step.collective import Collective
from tests.torch.loops import batches, close, model, parameters, same, train_by_backward
from tests.torch.step.quadratics import rotated

D = torch.float64


def on_a_quadratic(hessian, start, noise, steps, **settings):
    """Return excess losses and the optimizer."""
    theta = nn.Parameter(start.clone())
    optimizer = VSGD([theta], curvature=lambda loss, ones: [hessian.diagonal()], **settings)
    generator = torch.Generator().manual_seed(1)
    excess = []
    for _ in range(steps):
        centre = noise * torch.randn(len(start), generator=generator, dtype=D)
        optimizer.zero_grad()
        optimizer.backward((theta - centre) @ hessian @ (theta - centre) / 2)
        optimizer.step()
        excess.append(float(theta.detach() @ hessian @ theta.detach() / 2))
    return excess, optimizer


# --- It learns, and does not diverge --------------------------------------------------------------


def test_a_separable_quadratic_ends_below_one_samples_optimum():
    start = torch.full((50,), 3.0, dtype=D)
    excess, _ = on_a_quadratic(torch.eye(50, dtype=D), start, 0.3, 400)
    assert sum(excess[-50:]) / 50 < 0.09 * 50 / 2  # what each batch alone would lead to
    assert max(excess) <= excess[0]


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_a_rotated_quadratic_is_learnt_and_never_left(seed, noise):
    """Along steep directions a gradient may be small for long; then the scale grows too far."""
    hessian, start = rotated(seed)
    excess, optimizer = on_a_quadratic(hessian, start, noise, 600)
    assert max(excess) < 2 * excess[0]
    assert excess[-1] < 0.1 * excess[0]
    assert optimizer.counters["steps"] + sum(optimizer.counters["skipped"].values()) == 600
    assert optimizer.collective.averaged <= 590


def loss_on_all(net):
    x, y = next(batches(1, size=2000, seed=7))
    with torch.no_grad():
        return F.cross_entropy(net(x), y).item()


def test_batches_of_one_are_no_reason_to_undo_steps():
    net = model()
    optimizer = VSGD(net.parameters())
    for x, y in batches(1000, size=1):
        optimizer.zero_grad()
        optimizer.backward(F.cross_entropy(net(x), y))
        optimizer.step()
    assert loss_on_all(net) < 0.8
    assert optimizer.collective.restored < 50


def test_a_step_that_went_far_too_far_is_undone():
    theta = nn.Parameter(torch.ones(3, dtype=D))
    optimizer = VSGD([theta], curvature=lambda loss, ones: [torch.ones(3, dtype=D)])

    def step(steepness):
        optimizer.zero_grad()
        optimizer.backward(steepness * theta.square().sum() / 2)
        optimizer.step()

    for _ in range(40):
        step(1.0)
    scale = optimizer.collective.scale
    step(1.0)
    with torch.no_grad():
        theta.sub_(theta * 100)  # as if the step had been a hundred times as long
    step(1.0)
    assert optimizer.collective.restored == 1
    assert optimizer.collective.scale < scale / 2
    assert "steps undone: 1" in str(optimizer.explain())
    step(1.0)
    assert optimizer.collective.scale < scale / 2  # the undone step is not judged a second time


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_twice_undo_the_last_step_and_halve_the_scale(bad):
    """One batch that is not finite is the data's fault, and undoes nothing."""
    net = model()
    optimizer = VSGD(net.parameters())
    train_by_backward(net, optimizer, 40)
    before = parameters(net)
    train_by_backward(net, optimizer, 1, seed=2)
    scale, after = optimizer.collective.scale, parameters(net)
    train_by_backward(net, optimizer, 1, factor=bad)
    close(parameters(net), after, rtol=0.0, atol=0.0)
    assert optimizer.collective.scale == scale
    train_by_backward(net, optimizer, 1, factor=bad)
    close(parameters(net), before, rtol=0.0, atol=1e-6)
    assert optimizer.collective.scale == scale / 2
    train_by_backward(net, optimizer, 1, factor=bad)
    close(parameters(net), before, rtol=0.0, atol=1e-6)
    assert optimizer.collective.scale == scale / 2
    assert optimizer.collective.restored == 1
    assert sum(optimizer.counters["skipped"].values()) == 3
    train_by_backward(net, optimizer, 1)
    assert optimizer.collective.scale == scale / 2


def test_what_was_not_taken_is_not_undone():
    """A batch without a slope is no step; one that is not finite right after it leaves all as it is."""
    torch.manual_seed(0)
    theta = torch.nn.Parameter(torch.ones(2))
    optimizer = VSGD([theta])
    for factor in [1.0] * 30 + [0.0]:
        optimizer.zero_grad()
        optimizer.backward(factor * (theta - 0.1 * torch.randn(2)).square().sum())
        optimizer.step()
    before = theta.detach().clone()
    optimizer.zero_grad()
    optimizer.backward(theta.square().sum() * float("nan"))
    optimizer.step()
    assert torch.equal(theta, before)
    assert optimizer.collective.restored == 0


def test_steps_without_a_gradient_teach_nothing_about_lengths():
    net = model()
    optimizer = VSGD(net.parameters())
    train_by_backward(net, optimizer, 40)
    train_by_backward(net, optimizer, 1, factor=0.0)

    def lengths():  # all but how high losses are
        told = optimizer.collective.as_dict().items()
        return {name: value for name, value in told if not name.startswith(("loss", "calm", "excess"))}

    before = lengths()
    train_by_backward(net, optimizer, 5, factor=0.0)
    assert lengths() == before


# --- What multiplies steps, and what does not -----------------------------------------------------


def test_lr_multiplies_the_steps():
    net, other = model(), model()
    full, half = VSGD(net.parameters()), VSGD(other.parameters(), lr=0.5)
    for one, optimizer in ((net, full), (other, half)):
        train_by_backward(one, optimizer, 11)  # the first move
    for a, b, start in zip(parameters(net), parameters(other), parameters(model()), strict=True):
        torch.testing.assert_close((a - start) / 2, b - start, rtol=1e-4, atol=1e-7)
    train_by_backward(other, half, 30)
    scale = half.collective.scale
    assert all(state["length"] == 0.5 * scale for state in half.state.values())


@pytest.mark.parametrize("lr", [0.1, 0.01])
def test_the_scale_neither_makes_up_for_a_lower_lr_nor_follows_it(lr):
    net = model()
    optimizer = VSGD(net.parameters())
    train_by_backward(net, optimizer, 500)
    scale = optimizer.collective.scale
    for group in optimizer.param_groups:
        group["lr"] = lr
    train_by_backward(net, optimizer, 100)
    assert scale / 3 < optimizer.collective.scale < 3 * scale


def test_a_warm_up_does_no_harm():
    ends = []
    for steps in (1, 100):
        net = model()
        optimizer = VSGD(net.parameters())
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step, steps=steps: min(1.0, (step + 1) / steps)
        )
        for _ in range(18):
            train_by_backward(net, optimizer, 50)
            for _ in range(50):
                scheduler.step()
        ends.append(loss_on_all(net))
    assert ends[1] < 1.05 * ends[0] < 0.7


def test_parameters_with_an_lr_of_zero_have_no_say():
    """Their gradients stay as they are, which does not mean that steps are too short."""
    ends = []
    for with_spare in (False, True):
        theta, spare = nn.Parameter(torch.ones(3, dtype=D)), nn.Parameter(torch.ones(3, dtype=D))
        groups = [{"params": [theta]}, {"params": [spare], "lr": 0.0}]
        optimizer = VSGD(groups if with_spare else groups[:1])
        for _ in range(60):
            optimizer.zero_grad()
            loss = theta.square().sum() + (with_spare * 10 * spare).square().sum()
            optimizer.backward(loss)
            optimizer.step()
        ends.append((theta.detach(), optimizer.collective.scale))
    torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.parametrize("factor", [1e-6, 1e-3, 1e3, 1e6])
def test_the_units_of_the_loss_do_not_matter(factor):
    ends = []
    for unit in (1.0, factor):
        net = model(dtype=D)
        optimizer = VSGD(net.parameters())
        for x, y in batches(200):
            optimizer.zero_grad()
            optimizer.backward(unit * F.cross_entropy(net(x.double()), y))
            optimizer.step()
        ends.append(parameters(net))
    close(*ends, rtol=1e-6, atol=1e-8)


def test_a_layer_that_rests_in_between_is_not_judged_by_old_steps():
    net = model()
    optimizer = VSGD(net.parameters())
    train_by_backward(net, optimizer, 40)
    net[0].requires_grad_(False)
    before = parameters(net)[:2]
    train_by_backward(net, optimizer, 20)
    train_by_backward(net, optimizer, 1, factor=math.nan)  # undoes a step of the second layer
    assert same(before, parameters(net)[:2])
    net[0].requires_grad_(True)
    train_by_backward(net, optimizer, 20)
    assert not same(before, parameters(net)[:2])


# --- State and words ------------------------------------------------------------------------------


def test_explain_names_it():
    net = model()
    optimizer = VSGD(net.parameters())
    train_by_backward(net, optimizer, 60)
    told = optimizer.explain().as_dict()["collective"]
    assert told["form"] == "following"
    assert told["scale"] == optimizer.collective.scale
    assert "follows the gradients" in str(optimizer.explain())
    assert all(rate > 0 for rate in optimizer.rates().values())


def test_minimize_goes_on_in_the_form_that_was_begun():
    net, other = model(), model()
    optimizer, mixed = VSGD(net.parameters()), VSGD(other.parameters())
    train_by_backward(net, optimizer, 40)
    train_by_backward(other, mixed, 20)
    for k, (x, y) in enumerate(batches(40)):
        if k >= 20:
            mixed.minimize(lambda x=x, y=y: F.cross_entropy(other(x), y))
    assert mixed.counters["form"] == "following"
    close(parameters(net), parameters(other), rtol=1e-4, atol=1e-6)


def test_one_surprise_after_a_perfect_fit_does_not_undo_it():
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    optimizer = VSGD(layer.parameters())
    for step in range(400):
        x = torch.randn(16, 3, dtype=torch.float64)
        target = x.sum(1, keepdim=True)
        optimizer.zero_grad()
        loss = (layer(x) - target - float(step == 399)).square().mean()
        optimizer.backward(loss)
        optimizer.step()
    assert optimizer.collective.shortened + optimizer.collective.restored >= 1
    torch.testing.assert_close(layer.weight, torch.ones_like(layer.weight), rtol=0.0, atol=1e-3)


# --- Data that changes, and steps that run away ---------------------------------------------------


def follow_a_line(turns, steps=600, turn=300):
    """Learn y = x.w from noisy batches; `w` changes its sign once if it turns. Return how it went."""
    generator = torch.Generator().manual_seed(3)
    layer = nn.Linear(8, 1, bias=False, dtype=D)
    optimizer = VSGD(layer.parameters())
    losses = []
    for step in range(steps):
        x, noise = (torch.randn(16, size, dtype=D, generator=generator) for size in (8, 1))
        sign = -1.0 if turns and step >= turn else 1.0
        optimizer.zero_grad()
        loss = (layer(x) - sign * x.sum(1, keepdim=True) - noise).square().mean()
        optimizer.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer


def test_data_that_changes_is_noticed_and_followed():
    losses, optimizer = follow_a_line(turns=True)
    assert optimizer.collective.changes == 1
    assert max(losses[300:305]) > 10  # it did change
    assert sum(losses[-100:]) / 100 < 1.3  # the noise alone has 1
    (state,) = optimizer.state.values()
    assert state["memory"] < 600  # it has not looked back beyond the change


def test_data_that_stays_as_it_is_raises_no_alarm():
    losses, optimizer = follow_a_line(turns=False)
    assert optimizer.collective.changes == 0
    assert sum(losses[-100:]) / 100 < 1.3


@pytest.mark.parametrize(("before", "after"), [(34.0, 1.0), (0.2, 0.2)])
def test_a_new_start_keeps_scales_that_are_short_enough(before, after):
    collective, state = Collective(scale=before, slope=2.0, averaged=50.0, undoable=1.0), {"move": 50}
    following.start_anew([state], collective)
    assert (collective.scale, collective.slope, collective.changes) == (after, 0.0, 1)
    assert "move" not in state  # no later step takes that one for its last


def test_a_loss_that_is_not_finite_is_no_sign_of_anything():
    collective = Collective(loss=1.0, loss_memory=20.0, averaged=20.0)
    assert not following.has_trouble(collective, math.inf)
    assert not following.has_trouble(collective, math.nan)
    assert collective == Collective(loss=1.0, loss_memory=20.0, averaged=20.0)
