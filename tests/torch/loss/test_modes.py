"""What a watched model shows: the iterate where it is trained, else the better place."""

import copy

import pytest
import torch
from torch import nn

from tests.torch.loops import close, same, through_file
from tests.torch.loss.loops import Task, by_pair, watched
from tests.torch.robust import classes


def shown(task):
    return [one.detach().clone() for one in task.net.parameters()]


def passed(task, training):
    """Do a pass in one of the modes; return what the model shows."""
    task.net.train(training)
    with torch.no_grad():
        task.net(torch.zeros(4, 8, dtype=torch.float64))
    return shown(task)


def averaging(*between):
    """A task whose average is visible."""
    task = watched("pair", *between)
    steps = 0
    while not (task.optimizer.collective.shows_average and steps > 40):
        task.train("pair", 1, seed=steps)
        steps += 1
        assert steps < 400
    return task


def test_passes_in_evaluation_mode_see_the_average_and_others_the_iterate():
    task = averaging()
    assert not same(task.iterate, task.average)
    for _ in range(2):
        assert same(passed(task, False), task.average)
        assert same(passed(task, True), task.iterate)


def test_a_state_dict_is_what_its_mode_shows():
    task = averaging()
    task.net.eval()
    assert same(task.net.state_dict().values(), task.average)
    task.net.train()
    assert same(task.net.state_dict().values(), task.iterate)
    assert same(nn.Sequential(task.net.eval()).state_dict().values(), task.average)  # as part of another


def test_what_is_visible_is_what_minimize_would_show():
    for steps in (30, 60, 90):
        task, other = watched("pair").train("pair", steps), Task().train("minimize", steps)
        close(passed(task, False), shown(other), rtol=1e-9, atol=1e-9)


def test_evaluation_in_between_changes_no_step():
    task, other = averaging(), averaging()
    for x, y in classes(40, seed=5):
        by_pair(task, x.double(), y)
        passed(task, False)
        task.net.state_dict()
        task.net.train()
        by_pair(other, x.double(), y)
    assert same(task.iterate, other.iterate)
    assert same(task.average, other.average)


@pytest.mark.parametrize("training", [True, False])
def test_a_checkpoint_of_either_mode_goes_on_bit_for_bit(training):
    task = averaging()
    task.net.train(training)
    model, optimizer = through_file(task.net.state_dict()), through_file(task.optimizer.state_dict())
    other = watched("pair")
    other.net.load_state_dict(model)
    other.optimizer.load_state_dict(optimizer)
    for each in (task, other):
        each.net.train()
        each.train("pair", 20, seed=7)
    assert same(task.iterate, other.iterate)
    assert same(task.average, other.average)


def test_parameters_put_in_for_an_evaluation_are_left_alone_and_can_be_taken_back():
    """As callbacks with averages of their own do."""
    task, other = averaging(), averaging()
    kept = copy.deepcopy(task.net.state_dict())
    own = {name: torch.full_like(value, 0.5) for name, value in kept.items()}
    task.net.load_state_dict(own)
    assert same(passed(task, False), own.values())
    task.net.load_state_dict(kept)
    for each in (task, other):
        each.net.train()
        each.train("pair", 20, seed=7)
    assert same(task.iterate, other.iterate)


def test_parameters_changed_for_good_are_gone_on_from():
    task = averaging()
    new = {name: torch.randn_like(value) for name, value in task.net.state_dict().items()}
    task.net.load_state_dict(new)
    for group in task.optimizer.param_groups:
        group["lr"] = 0.0
    task.train("pair", 3)
    assert same(passed(task, False), new.values())
    assert same(passed(task, True), new.values())


def test_frozen_parameters_do_not_change_with_the_mode():
    task = averaging()
    before = passed(task, True)
    task.net[0].requires_grad_(False)
    found = passed(task, False)
    assert same(found[:2], before[:2])
    assert same(found[2:], task.average[2:])


def test_statistics_of_batch_norm_are_of_what_evaluation_sees():
    norm = nn.BatchNorm1d(16, momentum=1.0)  # its averages are those of one batch
    task, other = watched("pair", norm), Task(nn.BatchNorm1d(16, momentum=1.0))
    task.train("pair", 100)
    other.train("minimize", 100)
    assert task.optimizer.collective.shows_average
    close(task.net.buffers(), other.net.buffers(), rtol=1e-9, atol=1e-9)
    close(passed(task, False), shown(other), rtol=1e-9, atol=1e-9)
