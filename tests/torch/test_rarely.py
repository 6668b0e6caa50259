"""The robust dialect where it measures in one of several steps only."""

import pytest
import torch
import torch.nn.functional as F

from pesky import collective
from pesky.torch import VSGD
from tests.torch.test_robust import classes, mlp, robust, train, values

EVERY = 5
INITIAL = 10


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
    return calls[INITIAL:]


def test_a_loss_is_evaluated_again_only_where_it_is_measured():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=EVERY)

    def step(x, y, counting):
        optimizer.minimize(lambda: (counting(), F.cross_entropy(model(x), y))[1])

    calls = counted_calls(INITIAL + 12 * EVERY, step)
    measuring = calls[::EVERY]
    assert all(count >= 2 for count in measuring)
    assert all(count == 3 for count in measuring[int(collective.MEMORY) // EVERY :])  # and the average
    assert all(count == 1 for place, count in enumerate(calls) if place % EVERY)


def test_a_loss_given_again_is_called_only_where_it_is_measured():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=EVERY)

    def step(x, y, counting):
        optimizer.zero_grad()
        again = lambda: (counting(), F.cross_entropy(model(x), y))[1]  # noqa: E731
        optimizer.backward(F.cross_entropy(model(x), y), again=again)
        optimizer.step()

    calls = counted_calls(INITIAL + 8 * EVERY, step)
    assert all(count >= 2 for count in calls[::EVERY])
    assert not any(count for place, count in enumerate(calls) if place % EVERY)


@pytest.mark.parametrize("every", [2, 3, 10, 50])
def test_it_still_learns(every):
    torch.manual_seed(0)
    model = mlp()
    train(robust(model, curvature_every=every), model, classes(400))
    x, y = next(classes(1))
    assert F.cross_entropy(model(x), y) < 0.3


def test_every_step_is_the_same_as_not_saying_so():
    torch.manual_seed(0)
    one = mlp()
    other = mlp()
    other.load_state_dict(one.state_dict())
    train(robust(one, curvature_every=1), one, classes(60))
    train(VSGD(other.parameters()), other, classes(60))
    assert torch.equal(values(one), values(other))


def test_averages_look_back_as_many_steps_but_not_too_few_measurements():
    numbers = list(collective.START)
    assert collective.measurements(numbers, 40.0) == 40
    numbers[collective.INTERVAL] = 4.0
    assert collective.measurements(numbers, 40.0) == 10
    numbers[collective.INTERVAL] = 100.0
    assert collective.measurements(numbers, 40.0) == collective.FEWEST


def test_a_poisoned_batch_between_two_measurements_does_no_harm():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=EVERY)
    batches = list(classes(60))
    batches[INITIAL + 2 * EVERY + 2][0][:] = torch.nan
    train(optimizer, model, batches)
    assert optimizer.counters["skipped"] == {"loss not finite": 1}
    assert torch.isfinite(values(model)).all()
