"""The robust dialect where it measures in one of several steps only."""

import pytest
import torch
import torch.nn.functional as F

from pesky import length
from pesky.length import Length
from pesky.torch import VSGD
from tests.torch.loops import step_in_form
from tests.torch.robust import classes, mlp, robust, train, values

EVERY = 5
LOSS_EVERY = 8  # losses are evaluated again, in calm
INITIAL = 10
EARLY = 320  # moves, a multiple of both, after which measurements are as seldom as they may be


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


@pytest.mark.parametrize("every", [None, LOSS_EVERY, 50])
def test_a_loss_is_evaluated_again_only_where_it_is_measured(every):
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, lr=0.0, curvature_every=every, curvature="bbprop")  # no accidents

    def step(x, y, counting):
        optimizer.minimize(lambda: (counting(), F.cross_entropy(model(x), y))[1])

    calls = counted_calls(INITIAL + EARLY + 20 * LOSS_EVERY, step)
    measured = calls[::LOSS_EVERY]
    ends, averages = measured[1::2], measured[::2]  # at the end of the step; at the average as well
    assert set(ends) <= {2, 3}
    assert set(averages) <= {3, 4}
    assert ends.count(3) + averages.count(4) <= 2  # whether it repeats: as seldom as powers of two
    assert all(count == 1 for place, count in enumerate(calls) if place % LOSS_EVERY)


def test_a_loss_given_again_is_called_only_where_it_is_measured():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, lr=0.0, curvature="bbprop")

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


def test_a_finite_difference_is_one_more_evaluation():
    """Steps that measure curvature call their closure once more than those that take it from bbprop."""
    counts, measured = {}, []
    for source in (None, "bbprop"):
        torch.manual_seed(0)
        model = mlp()
        optimizer = robust(model, lr=0.0, curvature=source)

        def step(x, y, counting, optimizer=optimizer, model=model, source=source):
            if source is None:
                measured.append(optimizer._is_due())
            optimizer.minimize(lambda: (counting(), F.cross_entropy(model(x), y))[1])

        counts[source] = counted_calls(INITIAL + EARLY + 40, step)
    more = [one - other for one, other in zip(counts[None], counts["bbprop"], strict=True)]
    assert more == [int(due) for due in measured[INITIAL + EARLY :]]
    assert 1 <= sum(more) <= 4


def test_a_bound_that_is_never_reached_is_the_same_as_none():
    torch.manual_seed(0)
    one = mlp()
    other = mlp()
    other.load_state_dict(one.state_dict())
    train(robust(one, curvature_every=10**6), one, classes(120))
    train(VSGD(other.parameters()), other, classes(120))
    assert torch.equal(values(one), values(other))


def measured_moves(steps, form="measuring", **settings):
    """Return whether each initial batch, and which moves, measured curvature."""
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, lr=0.0, **settings)  # which never has an accident
    measured = []
    for x, y in classes(INITIAL + steps):
        before = sum(optimizer.counters["sources"].values())
        step_in_form(form, optimizer, lambda x=x, y=y: F.cross_entropy(model(x), y))
        measured.append(sum(optimizer.counters["sources"].values()) - before)
    assert set(measured) == {0, 1}
    return measured[:INITIAL], [move for move, count in enumerate(measured[INITIAL:]) if count]


@pytest.mark.parametrize("form", ["measuring", "following"])
@pytest.mark.parametrize("most", [None, EVERY])
def test_curvature_is_measured_at_distances_of_a_share_of_the_moves_so_far(form, most):
    initial, moves = measured_moves(300, form, curvature_every=most)
    expected = [0]
    for move in range(1, 300):
        distance = max(1, move // 20)
        if move - expected[-1] >= min(distance, most or distance):
            expected.append(move)
    assert initial == [1] * INITIAL
    assert moves == expected
    assert moves[:20] == list(range(20))


@pytest.mark.parametrize("every", [1, 3])
def test_the_papers_dialect_measures_in_every_step_or_one_of_so_many(every):
    torch.manual_seed(0)
    model = mlp()
    optimizer = VSGD(model.parameters(), dialect="paper", curvature_every=every)
    due = []
    for batch in classes(INITIAL + 12):
        due.append(optimizer._is_due())
        train(optimizer, model, [batch])
    assert due == [True] * INITIAL + [move % every == 0 for move in range(12)]


def test_after_a_step_into_a_wall_curvature_is_measured():
    theta = torch.nn.Parameter(torch.tensor([5.0]))
    optimizer = VSGD([theta])
    torch.manual_seed(0)
    for _ in range(INITIAL + EARLY + 2):
        noise = torch.randn(1)
        optimizer.minimize(lambda noise=noise: (theta - noise).square().sum())
    assert not optimizer._is_due()
    wall = theta.item() - 1e-3
    optimizer.minimize(lambda: 100 * theta.sum() + 1e6 * F.relu(wall - theta).square().sum())
    assert optimizer.collective.shortened == 1
    assert optimizer._is_due()
    optimizer.minimize(lambda: theta.square().sum())
    assert not optimizer._is_due()


@pytest.mark.parametrize("form", ["measuring", "following"])
def test_after_a_step_that_was_undone_curvature_is_measured(form):
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    batches = list(classes(INITIAL + 123))
    for x, y in batches[:-1]:
        step_in_form(form, optimizer, lambda x=x, y=y: F.cross_entropy(model(x), y))
    assert not optimizer._is_due()
    x, y = batches[-1]

    def loss():
        return F.cross_entropy(model(x), y)

    for _ in range(2):  # of which the first is the batch's fault, and the second the last step's
        assert not optimizer._is_due()
        optimizer.zero_grad()
        optimizer.backward(loss(), again=loss if form == "measuring" else None)
        model[0].bias.grad[1] = torch.inf
        optimizer.step()
    assert optimizer.collective.restored == 1
    assert optimizer._is_due()


def test_levels_stay_until_the_next_measurement():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    changed = []
    for batch in classes(INITIAL + EARLY + 40):
        before = [dict(optimizer.state[one]) for one in model.parameters()]
        due = optimizer._is_due()
        train(optimizer, model, [batch])
        after = [optimizer.state[one] for one in model.parameters()]
        same = [
            one.get("level_square") == other["level_square"]
            for one, other in zip(before, after, strict=True)
        ]
        changed.append((due, any(same), all(same)))
    assert set(changed) == {(True, False, False), (False, True, True)}


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


def test_every_step_is_measured_while_a_new_group_collects():
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
        ends.append(optimizer.state[theta]["level_square"])
    expected = 4 - 3 * (1 - 1 / length.FEWEST) ** 5  # five squares of 2 after many of 1
    assert ends == pytest.approx([expected] * 2, rel=0.02)


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
