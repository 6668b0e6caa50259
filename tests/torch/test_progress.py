"""What an optimizer says about itself: verdicts, and warnings that come once, when they should."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pesky.torch import VSGD
from pesky.torch.outcome import GRADIENT, NOT_FINITE, REMEDIES, SCALER, patience
from pesky.torch.progress import EARLY, FIRST, LATE, SHORT, Progress
from tests.torch.loops import FORMS, batches, dialect_of, model, step_in_form, train, train_in_form


def noted(losses):
    progress = Progress()
    for loss in losses:
        progress.note_loss(loss)
        progress.full += 1
    return progress


@pytest.mark.parametrize("form", FORMS)
def test_explain_leads_with_starting_then_learning(form):
    net = model()
    optimizer = VSGD(net.parameters(), dialect=dialect_of(form))
    train_in_form(form, net, optimizer, 4)
    assert str(optimizer.explain()).startswith("starting: 4 of 10 initial batches")
    train_in_form(form, net, optimizer, 60)
    assert str(optimizer.explain()).startswith("learning: the loss is")
    assert optimizer.explain().as_dict()["verdict"] == optimizer.explain().verdict


@pytest.mark.parametrize("form", FORMS)
def test_explain_leads_with_skipping_and_the_reason(form):
    net = model()
    optimizer = VSGD(net.parameters(), dialect=dialect_of(form))
    train_in_form(form, net, optimizer, 15)
    x, y = next(batches(1))
    for _ in range(3):
        step_in_form(form, optimizer, lambda: cross_entropy(net(x * math.nan), y))
    assert optimizer.explain().verdict == f"skipping: 3 steps in a row ({NOT_FINITE})"
    train_in_form(form, net, optimizer, 1)
    assert not optimizer.explain().verdict.startswith("skipping")


def test_a_loss_far_above_the_first_ones_is_diverging():
    progress = noted([1.0, 1.1] * FIRST + [30.0] * 60)
    assert progress.verdict(None, 1.0).word == "diverging"


def test_a_loss_that_stays_with_short_steps_is_stuck_early_and_with_long_ones_late():
    still = [1.0, 1.1] * LATE
    early = noted(still[: EARLY - 1])
    early.note_loss(1.0)
    assert early.verdict(None, SHORT).word == "stuck"
    assert early.verdict(None, 10 * SHORT).word == "stuck"
    assert early.note_step(None) is None  # lr held it down
    assert "has not moved" in early.note_step(SHORT)
    assert early.note_step(10 * SHORT) is None
    assert "has not moved" in noted(still[:LATE]).note_step(10 * SHORT)


def test_a_scale_near_nothing_is_said_unless_the_loss_falls():
    still, falling = noted([1.0, 1.1] * 20), noted([100.0 - k for k in range(40)])
    for _ in range(40):
        said, silent = still.note_step(1e-9), falling.note_step(1e-9)
    assert "below 1e-06" in said
    assert silent is None
    assert still.verdict(None, 1e-9).word == "stuck"
    assert falling.verdict(None, 1e-9).word == "learning"


@pytest.mark.parametrize("reason", list(REMEDIES))
def test_every_reason_for_skipping_has_a_remedy_and_patience(reason):
    progress = Progress()
    for _ in range(patience(reason) - 1):
        assert progress.note_skip(reason) is None
    assert REMEDIES[reason] in progress.note_skip(reason)
    assert progress.note_step(1.0) is None
    assert progress.note_skip(reason) is None  # in a row, that is


def test_a_loss_scaler_that_comes_down_is_no_reason_for_words():
    assert patience(SCALER) > 16  # from 2^16, halving by halving
    assert patience(GRADIENT) < 10


def test_losses_that_are_not_finite_do_not_count():
    progress = noted([1.0, math.nan, math.inf, 1e200, 3.0])
    assert progress.losses == 2
    assert progress.recent == 2.0


def test_progress_is_saved_with_the_state():
    net = model()
    optimizer = VSGD(net.parameters())
    train(net, optimizer, 20)
    resumed = VSGD(net.parameters())
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.progress == optimizer.progress
    assert resumed.progress.losses == 20


def test_a_warning_points_at_the_users_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        VSGD(model().parameters(), lr=0.01)
    assert [one.filename for one in caught] == [__file__]


def test_training_that_goes_well_says_nothing():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(10, 16), nn.Dropout(0.2), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(net, VSGD(net.parameters()), 300)
