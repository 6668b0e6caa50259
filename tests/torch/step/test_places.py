"""Iterate and average: which one is visible, and what changes from outside or an error do."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pesky import length
from tests.torch.robust import classes, mlp, robust, train, values


def test_batch_norms_averages_are_of_the_visible_parameters():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, momentum=1.0)  # its averages are those of one batch
    model = nn.Sequential(nn.Linear(8, 16), norm, nn.Tanh(), nn.Linear(16, 3))
    optimizer = robust(model)
    compared = set()
    for x, y in classes(300):
        collective, first = optimizer.collective, model[0]
        name = "average" if collective.shows_average else "iterate"
        due = length.is_average_due(collective) and optimizer._is_loss_due()
        place = name if due else "iterate"  # without a pass at the average, the other one must do
        if collective.averaged:
            weight, bias = (optimizer.state[one][place].clone() for one in first.parameters())
        train(optimizer, model, [(x, y)])
        if collective.averaged > 1:
            torch.testing.assert_close(norm.running_mean, (x @ weight.T + bias).mean(0))
            compared.add((name, due))
    assert compared >= {("iterate", False), ("average", True), ("average", False)}


def test_the_visible_parameters_are_the_average_where_it_is_better():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    shown = set()
    for batch in classes(300):
        train(optimizer, model, [batch])
        better = optimizer.collective.lead > 0
        if optimizer.collective.averaged:
            name = "average" if better else "iterate"
            assert all(torch.equal(one, optimizer.state[one][name]) for one in model.parameters())
            shown.add(name)
    assert shown == {"average", "iterate"}


@pytest.mark.parametrize("in_data", [False, True])
def test_parameters_changed_from_outside_are_gone_on_from(in_data):
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, lr=0.0)
    train(optimizer, model, classes(100))
    new = [torch.randn_like(one) for one in model.parameters()]
    with torch.no_grad():
        for one, value in zip(model.parameters(), new, strict=True):
            (one.data if in_data else one).copy_(value)
    train(optimizer, model, classes(3))
    for one, value in zip(model.parameters(), new, strict=True):
        torch.testing.assert_close(one.detach(), value)


def test_an_exception_in_the_closure_changes_nothing():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(100))
    before, moves = values(model), optimizer.collective.averaged

    def fail():
        raise KeyError

    with pytest.raises(KeyError):
        optimizer.minimize(fail)
    assert torch.equal(values(model), before)
    train(optimizer, model, classes(1))
    assert optimizer.collective.averaged == moves + 1


def test_an_error_while_a_loss_is_given_again_leaves_the_iterate():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=1)
    is_stepping = False

    def again(x, y):
        if is_stepping:
            raise KeyError
        return F.cross_entropy(model(x), y)

    for number, (x, y) in enumerate(classes(30)):
        before = values(model)
        optimizer.zero_grad()
        optimizer.backward(F.cross_entropy(model(x), y), again=lambda x=x, y=y: again(x, y))
        if number < 29:
            optimizer.step()
    is_stepping = True
    with pytest.raises(KeyError):
        optimizer.step()
    assert torch.equal(values(model), before)


def test_backward_with_again_keeps_the_iterate_and_moves_alike():
    ends = []
    for by_hand in (False, True):
        torch.manual_seed(0)
        model = mlp()
        optimizer = robust(model)
        for x, y in classes(120):

            def loss(x=x, y=y, model=model):
                return F.cross_entropy(model(x), y)

            if by_hand:
                optimizer.zero_grad()
                optimizer.backward(loss(), again=loss)
                optimizer.step()
            else:
                optimizer.minimize(loss)
        ends.append([optimizer.state[one]["iterate"] for one in model.parameters()])
        if by_hand:
            assert all(torch.equal(*pair) for pair in zip(ends[-1], model.parameters(), strict=True))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_places_in_float32(dtype):
    torch.manual_seed(0)
    model = mlp().to(dtype)
    optimizer = robust(model)
    for x, y in classes(100):
        optimizer.minimize(lambda x=x, y=y: F.cross_entropy(model(x.to(dtype)).float(), y))
    for one in model.parameters():
        state = optimizer.state[one]
        assert {state[name].dtype for name in ("iterate", "average")} == {torch.float32}
        name = "average" if optimizer.collective.shows_average else "iterate"
        assert torch.equal(one, state[name].to(dtype))


def test_the_average_takes_in_an_iterate_when_the_next_step_moves_on_from_it():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(11))
    one = model[0].weight
    places = optimizer.state[one]
    for batch in classes(50):
        iterate, average = (places[name].clone() for name in ("iterate", "average"))
        moves = optimizer.collective.averaged
        train(optimizer, model, [batch])
        weight = (optimizer.collective.averaged - moves) / (length.window(optimizer.collective) + 1)
        torch.testing.assert_close(places["average"], average.lerp(iterate, weight))


@pytest.mark.parametrize("loss", [1e6, math.nan])
def test_a_gross_step_is_undone_to_the_average_that_has_not_seen_it(loss):
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(60))
    places = [optimizer.state[one] for one in model.parameters()]
    before = [state["average"].clone() for state in places]
    bad = [state["iterate"].clone() for state in places]
    scale = optimizer.collective.scale

    def walled(x, y):
        """A loss that only the last iterate finds bad."""
        is_bad = all(torch.equal(*pair) for pair in zip(model.parameters(), bad, strict=True))
        return F.cross_entropy(model(x), y) * (loss if is_bad else 1.0)

    (x, y), (later_x, later_y) = classes(2, seed=1)
    optimizer.minimize(lambda: walled(x, y))
    for one, state, average in zip(model.parameters(), places, before, strict=True):
        assert torch.equal(state["average"], average)
        assert torch.equal(state["iterate"], average)
        assert torch.equal(one, average)
    assert optimizer.collective.restored == 1
    assert optimizer.collective.undoable == 0  # until there is another step
    assert optimizer.collective.scale == scale / 2
    train(optimizer, model, [(later_x, later_y)])
    assert optimizer.collective.undoable == 1
    for state, average in zip(places, before, strict=True):
        torch.testing.assert_close(state["average"], average)


def test_before_any_move_there_is_nothing_to_undo():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(10))
    before = values(model)
    for x, y in classes(3, seed=1):
        optimizer.minimize(lambda x=x, y=y: F.cross_entropy(model(x), y) * math.nan)
    assert torch.equal(values(model), before)
    assert optimizer.collective.restored == 0


def test_the_state_holds_four_numbers_a_parameter():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(30))
    for one in model.parameters():
        held = {name for name, value in optimizer.state[one].items() if isinstance(value, torch.Tensor)}
        assert held == {"mean_gradient", "mean_square", "iterate", "average"}
