"""The robust dialect where it measures in one of several steps only."""

import pytest
import torch
import torch.nn.functional as F

from pesky import length
from pesky.length import Length
from pesky.torch import VSGD
from tests.torch.robust import classes, mlp, robust, train, values

EVERY = 5
LOSS_EVERY = 3  # losses are evaluated again twice as often as curvature is measured
INITIAL = 10
EARLY = 120  # moves, a multiple of both, after which measurements are as seldom as they may be


def counted_calls(steps, step):
    """How often each step calls its closure; `step` is given the batch and what counts."""
    calls = []
    for batch in classes(steps):
        count = 0

        def counting():
            nonlocal count
            count += 1

        step(*batch, counting)
        calls.append(count)
    return calls[INITIAL + EARLY :]


def test_a_loss_is_evaluated_again_only_where_it_is_measured():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=EVERY)

    def step(x, y, counting):
        optimizer.minimize(lambda: (counting(), F.cross_entropy(model(x), y))[1])

    calls = counted_calls(INITIAL + EARLY + 20 * LOSS_EVERY, step)
    measured = calls[::LOSS_EVERY]  # at the end of the step, at the average; seldom, whether it repeats
    assert set(measured) <= {3, 4}
    assert measured.count(4) <= 2  # as seldom as powers of two
    assert all(count == 1 for place, count in enumerate(calls) if place % LOSS_EVERY)


def test_a_loss_given_again_is_called_only_where_it_is_measured():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=EVERY)

    def step(x, y, counting):
        optimizer.zero_grad()
        again = lambda: (counting(), F.cross_entropy(model(x), y))[1]  # noqa: E731
        optimizer.backward(F.cross_entropy(model(x), y), again=again)
        optimizer.step()

    calls = counted_calls(INITIAL + EARLY + 12 * LOSS_EVERY, step)
    assert all(count >= 2 for count in calls[::LOSS_EVERY])
    assert not any(count for place, count in enumerate(calls) if place % LOSS_EVERY)


@pytest.mark.parametrize("every", [2, 3, 10, 50])
def test_it_still_learns(every):
    torch.manual_seed(0)
    model = mlp()
    train(robust(model, curvature_every=every), model, classes(400))
    x, y = next(classes(1))
    assert F.cross_entropy(model(x), y) < 0.3


def test_every_fourth_step_is_the_same_as_not_saying_so():
    torch.manual_seed(0)
    one = mlp()
    other = mlp()
    other.load_state_dict(one.state_dict())
    train(robust(one, curvature_every=4), one, classes(120))
    train(VSGD(other.parameters()), other, classes(120))
    assert torch.equal(values(one), values(other))


def test_at_first_every_step_is_measured():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=EVERY)
    measured = []
    for batch in classes(INITIAL + EARLY + 2 * EVERY):
        before = optimizer.counters["sources"].get("bbprop", 0)
        train(optimizer, model, [batch])
        measured.append(optimizer.counters["sources"]["bbprop"] > before)
    after = measured[INITIAL:]
    assert all(measured[:INITIAL])
    assert all(after[: 2 * int(length.MEMORY)])
    assert [place % EVERY == 0 for place in range(100, len(after))] == after[100:]
    counts = [sum(after[start : start + 20]) for start in range(0, EARLY, 20)]
    assert counts == sorted(counts, reverse=True)


def test_the_first_slope_may_come_where_nothing_is_due():
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = VSGD(layer.parameters())
    for step in range(300):
        x = torch.randn(16, 3)
        target = x.sum(1, keepdim=True) * float(step >= 91)
        if step == 91:
            assert not optimizer._is_loss_due()
        optimizer.minimize(lambda x=x, target=target: F.mse_loss(layer(x), target))
    torch.testing.assert_close(layer.weight, torch.ones(1, 3), rtol=0.0, atol=0.01)


def test_a_curvature_stands_for_itself_while_a_new_group_collects():
    """As then every step is measured."""
    ends = []
    for every in (1, 4):
        torch.manual_seed(0)
        theta, late = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        optimizer = VSGD([theta], curvature_every=every)

        def loss(bend, noise, theta=theta, late=late):
            return bend / 2 * (theta - noise).square().sum() + late.square().sum()

        for _ in range(120):
            noise = torch.randn(2)
            optimizer.minimize(lambda noise=noise, loss=loss: loss(1.0, noise))
        optimizer.add_param_group({"params": [late]})
        for _ in range(5):
            noise = torch.randn(2)
            optimizer.minimize(lambda noise=noise, loss=loss: loss(2.0, noise))
        ends.append(optimizer.state[theta]["mean_curvature"])
    torch.testing.assert_close(*ends, rtol=0.02, atol=0.0)


@pytest.mark.slow
def test_other_dropout_masks_are_no_reason_to_undo_a_step():
    for seed in range(12):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3)
        )
        optimizer = VSGD(model.parameters(), lr=0.0)
        for step, (x, y) in enumerate(classes(INITIAL + EARLY + 2)):
            factor = 1000.0 if step == INITIAL + EARLY + 1 else 1.0

            def loss(model=model, x=x, y=y, factor=factor):
                return factor * F.cross_entropy(model(x), y)

            optimizer.zero_grad()
            optimizer.backward(loss(), again=loss)
            optimizer.step()
        assert optimizer.collective.restored == 0


def test_averages_look_back_as_many_steps_but_not_too_few_measurements():
    assert length.measurements(Length(), 40.0) == 40
    assert length.measurements(Length(interval=4.0), 40.0) == 10
    assert length.measurements(Length(interval=100.0), 40.0) == length.FEWEST


def test_a_measured_curvature_stands_for_the_steps_without_one():
    """Where curvatures are constant, their average is the same however seldom they are measured."""
    ends = []
    for every in (1, 4):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = robust(model, curvature_every=every)
        for bend in [1.0] * 120 + [2.0] * 121:
            x = torch.eye(3).repeat(8, 1)
            noise = torch.randn(24, 1)

            def loss(model=model, x=x, noise=noise, bend=bend):
                return bend * F.mse_loss(model(x), noise)

            optimizer.minimize(loss)
        state = optimizer.state[model.bias]
        ends.append((state["mean_curvature"].item(), state["memory"].item()))
    (often, _), (seldom, memory) = ends
    assert memory > 16
    assert 2.0 < seldom < 4.0
    assert abs(seldom - often) < 0.3


def test_a_steep_batch_is_measured_out_of_turn():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(INITIAL + EARLY + 1))
    assert not optimizer._is_loss_due()
    (x, y), calls = next(classes(1)), []
    slope = optimizer.collective.slope
    optimizer.minimize(lambda: (calls.append(1), 20 * F.cross_entropy(model(x), y))[1])
    assert len(calls) > 1
    assert optimizer.collective.slope == slope
    assert optimizer.counters["skipped"] == {}


def test_a_steep_step_into_a_wall_is_shortened_out_of_turn():
    """The loss is a valley with a wall that only one batch, of a far larger gradient, runs into."""
    theta = torch.nn.Parameter(torch.tensor([5.0]))
    optimizer = VSGD([theta])
    torch.manual_seed(0)
    for _ in range(INITIAL + EARLY + 1):
        noise = torch.randn(1)
        optimizer.minimize(lambda noise=noise: (theta - noise).square().sum())
    assert not optimizer._is_loss_due()
    before = theta.detach().clone()
    wall = before.item() - 1e-3
    optimizer.minimize(lambda: 100 * theta.sum() + 1e6 * F.relu(wall - theta).square().sum())
    assert optimizer.collective.shortened == 1
    assert theta.item() > wall - 0.1


def test_a_poisoned_batch_between_two_measurements_does_no_harm():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=EVERY)
    batches = list(classes(INITIAL + EARLY + 20))
    batches[INITIAL + EARLY + 2][0][:] = torch.nan
    train(optimizer, model, batches)
    assert optimizer.counters["skipped"] == {"loss not finite": 1}
    assert torch.isfinite(values(model)).all()
