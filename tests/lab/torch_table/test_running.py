"""One run of the table: fair to all, measured as a user has it, and told if it diverged."""

import math
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from pesky.errors import InputError
from pesky.lab.runs.completing import Interrupted
from pesky.lab.torch_table import contestants, text
from pesky.lab.torch_table.contestants import CONTESTANTS, METHODS, begin
from pesky.lab.torch_table.instance import Instance, Measured, generator, in_eval_mode
from pesky.lab.torch_table.rows import curve_text, parse_curve, parse_mark
from pesky.lab.torch_table.running import run
from pesky.lab.torch_table.tasks import TASKS
from tests.lab.toys import STEPS, TOY, toy_instance, toy_key, toy_loss
from tests.real_data import needs_data

MIDDLE = {name: one.settings[len(one.settings) // 2] for name, one in CONTESTANTS.items()}
MADE = ("regression", "quadratic")
IMAGES = [name for name, task in TASKS.items() if task.dataset is not None]


def row_of(task, name, steps=STEPS, seed=0, stop=None):
    key = toy_key(CONTESTANTS[name].method, MIDDLE[name], steps=steps, seed=seed)
    return run(task, key, None, stop or threading.Event())


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_contestant_lowers_the_loss(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        before = toy_instance(0, None)
    start = before.evaluate(before.model)
    row = row_of(TOY, name, steps=400)
    assert (row.status, row.steps_done, row.diverged_at) == ("finished", 400, None)
    assert row.train < 0.9 * start.train
    assert row.test == pytest.approx(10 * row.train)
    points = parse_curve(row.curve)
    assert points[-1].step == 400
    assert 25 <= len(points) <= 40
    assert points[-1].loss < points[0].loss
    assert 0 < points[0].seconds <= points[-1].seconds <= 1.01 * row.seconds + 1e-3


def test_all_contestants_have_the_same_start_and_batches():
    seen = []

    def watched(seed, folder):
        instance = toy_instance(seed, folder)
        record = [one.detach().clone() for one in instance.model.parameters()]

        def batch(step):
            found = instance.batch(step)
            record.extend(found)
            return found

        seen.append(record)
        return instance._replace(batch=batch)

    for name in CONTESTANTS:
        row_of(replace(TOY, begin=watched), name)
    row_of(replace(TOY, begin=watched), "adam", seed=1)
    *same, other = seen
    for record in same:
        assert len(record) == 4 + 2 * STEPS
        assert all(map(torch.equal, record, same[0]))
    assert not any(map(torch.equal, other[::2], same[0][::2]))


def test_runs_repeat_exactly_and_leave_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (row_of(TOY, "vsgd") for _ in range(2))
    assert (first.train, first.test) == (second.train, second.test)
    assert torch.equal(torch.rand(1), expected)


def breaking(seed, folder, at=(), forever=False):
    """The toy, with losses that are not finite at some steps."""
    instance = toy_instance(seed, folder)
    wrong = {"now": False}

    def batch(step):
        wrong["now"] = step + 1 in at or (forever and step + 1 >= min(at))
        return instance.batch(step)

    def loss(model, samples):
        return toy_loss(model, samples) * (math.nan if wrong["now"] else 1.0)

    return instance._replace(batch=batch, loss=loss)


@pytest.mark.filterwarnings("ignore:5 steps in a row were skipped")  # VSGD says so, too
@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_run_without_finite_losses_is_told_with_the_step(name):
    row = row_of(replace(TOY, begin=partial(breaking, at=(13,), forever=True)), name)
    assert (row.status, row.train, row.test, row.diverged_at) == ("diverged", None, None, 13)
    assert row.steps_done >= 13
    assert all(point.step <= 13 for point in parse_curve(row.curve))


def test_who_mends_a_loss_that_is_not_finite_goes_on():
    task = replace(TOY, begin=partial(breaking, at=(13,)))
    assert row_of(task, "vsgd").status == "finished"
    assert row_of(task, "adam").diverged_at == 13


def test_an_explosion_is_told():
    row = run(TASKS["quadratic"], toy_key("sgd", "lr=1 momentum=0.9"), None, threading.Event())
    assert row.status == "diverged"
    assert 5 <= row.diverged_at <= row.steps_done < STEPS


def test_a_run_can_be_stopped():
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        row_of(TOY, "adam", stop=stop)


def test_evaluating_leaves_every_module_in_its_mode():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    model[1].eval()
    with in_eval_mode(model):
        assert not model[0].training
        assert not torch.is_grad_enabled()
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_schedule_free_fits_batch_norm_to_the_parameters_it_ends_with():
    instance = toy_instance(0, None, norm=True)
    training = begin("schedule-free", "lr=2.5e-3", instance.model)

    def loss(step):
        return toy_loss(instance.model, instance.batch(step))

    for step in range(100):
        training.step(partial(loss, step))
    model = training.finish(partial(loss, step) for step in range(100))
    hidden = torch.cat([instance.batch(step)[0] for step in range(50)]) @ model[0].weight.T
    expected = (hidden + model[0].bias).mean(0)
    torch.testing.assert_close(model[1].running_mean, expected, atol=0.2, rtol=0)


def test_dog_shows_its_average():
    instance = toy_instance(0, None)
    training = begin("dog", "lr=1", instance.model)
    for step in range(20):
        training.step(lambda step=step: toy_loss(instance.model, instance.batch(step)))
    assert training.finish(()) is not instance.model


def test_a_method_without_its_package_is_not_installed(monkeypatch):
    assert all(method.is_installed for method in METHODS.values())
    monkeypatch.setattr(contestants.importlib.util, "find_spec", lambda name: None)
    missing = {name for name, method in METHODS.items() if not method.is_installed}
    assert missing == {"prodigy", "dog", "schedule-free", "prodigy-plus", "momo"}


@pytest.mark.parametrize("name", CONTESTANTS)
def test_contestants_are_known_methods_and_grids_have_seven_rates(name):
    contestant = CONTESTANTS[name]
    assert contestant.method in METHODS
    assert len(contestant.settings) == (7 if contestant.is_tuned else 1)
    assert len(set(contestant.settings)) == len(contestant.settings)


def test_adams_default_is_one_of_its_grid():
    assert CONTESTANTS["adam"].settings[0] in CONTESTANTS["adam-tuned"].settings


@pytest.mark.parametrize(
    "text",
    [
        "1 0.002 2.303;20 0.4 1.5e+20",  # as rows of old have it
        "start 2.31 90.25;equal-cost 0.5 7;1 0.002 2.303 1;20 0.4 1.5e+20 33.3333",
        "start -1.5 1e+06",
    ],
)
def test_curves_come_back(text):
    marks = {mark: parse_mark(text, mark) for mark in ("start", "equal-cost")}
    known = {mark: pair for mark, pair in marks.items() if pair is not None}
    assert curve_text(parse_curve(text), known) == text


def test_curves_of_old_have_neither_marks_nor_costs():
    text = "1 0.002 2.303;20 0.4 1.5"
    assert [point.cost for point in parse_curve(text)] == [None, None]
    assert parse_mark(text, "start") is None
    assert parse_curve("") == []
    assert parse_mark("", "equal-cost") is None


def test_every_row_has_the_start_that_all_share():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        before = toy_instance(0, None)
    start = before.evaluate(before.model)
    for name in CONTESTANTS:
        mark = parse_mark(row_of(TOY, name).curve, "start")
        assert mark == pytest.approx(start, rel=1e-5)


@pytest.mark.parametrize("name", [name for name, one in CONTESTANTS.items() if not one.is_ours])
def test_an_ordinary_step_costs_one(name):
    row = row_of(TOY, name)
    assert parse_curve(row.curve)[-1].cost == pytest.approx(STEPS)
    assert parse_mark(row.curve, "equal-cost") is None  # that is its end


@pytest.mark.parametrize("name", ["vsgd", "vsgd-backward", "vsgd-paper"])
def test_passes_of_vsgd_are_counted(name):
    calls = []

    def counted(seed, folder):
        instance = toy_instance(seed, folder)

        def loss(model, batch):
            if model.training:
                calls.append(torch.is_grad_enabled())
            return toy_loss(model, batch)

        return instance._replace(loss=loss)

    row = row_of(replace(TOY, begin=counted), name)
    cost = parse_curve(row.curve)[-1].cost
    measured = 3 * cost - len(calls) - 2 * STEPS  # what is left are curvature passes
    walks = round(measured / 2)
    assert 2 * walks == pytest.approx(measured, abs=1e-3)
    assert 1 <= walks <= STEPS
    if name != "vsgd":
        assert len(calls) == STEPS
    else:
        assert len(calls) > STEPS
    mark = parse_mark(row.curve, "equal-cost")
    assert mark is not None
    assert mark.test == pytest.approx(10 * mark.train, rel=1e-4)


def test_a_run_beyond_its_limit_is_stopped_and_says_so():
    key = toy_key("adam", "lr=1e-3", steps=10**9)
    row = run(TOY, key, None, threading.Event(), limit=0.05)
    assert (row.status, row.train, row.test, row.diverged_at) == ("too slow", None, None, None)
    assert 0 < row.steps_done < 10**9
    assert row.seconds >= 0.05
    assert parse_curve(row.curve)


def test_a_task_that_changes_is_judged_by_the_mean_over_the_run():
    row = row_of(replace(TOY, is_changing=True), "adam", steps=300)
    before, mean = 0, 0.0
    for point in parse_curve(row.curve):
        mean += point.loss * (point.step - before) / 300
        before = point.step
    assert row.train == pytest.approx(mean, rel=1e-3)
    usual = row_of(TOY, "adam", steps=300)
    assert row.train > usual.train
    assert row.test == usual.test


@pytest.mark.parametrize("name", MADE)
def test_made_tasks_know_their_optimum(name):
    instance = TASKS[name].begin(0, None)
    parameter = next(instance.model.parameters())
    start = instance.evaluate(instance.model)
    assert start.train == start.test > 0
    # The expected loss grows as the excess does: compare with the mean over many batches.
    direction = torch.randn(parameter.shape, generator=generator(4))
    batches = [instance.batch(step) for step in range(400)]

    def mean_loss():
        with torch.no_grad():
            return sum(float(instance.loss(instance.model, batch)) for batch in batches) / 400

    before = mean_loss()
    with torch.no_grad():
        parameter += direction
    gained = mean_loss() - before
    assert gained == pytest.approx(instance.evaluate(instance.model).train - start.train, rel=0.2)


def test_the_text_is_large_enough_ascii_and_split():
    found = text.source_text()
    assert (len(found.train), len(found.held_out)) == (2_700_000, 300_000)
    assert 90 <= found.symbols <= 128
    assert len(found.checksum) == 16
    assert TASKS["lstm"].data() == found.checksum


def test_a_python_without_sources_is_told(monkeypatch, tmp_path):
    (tmp_path / "only.py").write_text("x = 1\n")
    monkeypatch.setattr(text.sysconfig, "get_path", lambda name: str(tmp_path))
    text.source_text.cache_clear()
    try:
        with pytest.raises(InputError, match=r"only 6 characters.*--tasks"):
            text.source_text()
    finally:
        text.source_text.cache_clear()


def assert_begins_alike(task):
    torch.manual_seed(1)
    first = task.begin(1, None)
    torch.manual_seed(1)
    again = task.begin(1, None)
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))
    assert all(map(torch.equal, first.batch(3), again.batch(3)))
    assert not torch.equal(first.batch(3)[0], first.batch(4)[0])
    assert not torch.equal(first.batch(3)[0], task.begin(2, None).batch(3)[0])
    loss = first.loss(first.model, first.batch(0))
    assert loss.shape == ()
    assert torch.isfinite(loss)
    return first


@pytest.mark.parametrize("name", [*MADE, "transformer", "lstm"])
def test_tasks_without_files_begin_alike(name):
    assert_begins_alike(TASKS[name])


@needs_data
@pytest.mark.parametrize("name", IMAGES)
def test_tasks_on_images_begin_alike(name):
    assert_begins_alike(TASKS[name])


@needs_data
def test_an_epoch_sees_every_sample_once():
    instance = TASKS["softmax-64"].begin(0, None)
    steps = TASKS["softmax-64"].steps // 6
    labels = torch.cat([instance.batch(step)[1] for step in range(steps)])
    inputs = torch.cat([instance.batch(step)[0][:, 0] for step in range(steps, 2 * steps)])
    assert len(labels) == len(inputs) == 10_000
    every = TASKS["softmax-1"].begin(3, None)
    assert [TASKS[name].steps for name in ("softmax-1", "softmax-64", "mlp-1")] == [60_000, 942, 60_000]
    assert (
        labels.bincount().tolist()
        == torch.stack([every.batch(step)[1] for step in range(10_000)]).flatten().bincount().tolist()
    )


@needs_data
def test_a_softmax_that_knows_nothing_is_measured_so():
    instance = TASKS["softmax-64"].begin(0, None)
    with torch.no_grad():
        for one in instance.model.parameters():
            one.zero_()
    measured = instance.evaluate(instance.model)
    assert measured.train == pytest.approx(math.log(10), rel=1e-5)
    assert measured.test == pytest.approx(90.0)


@needs_data
def test_reconstructions_are_measured_as_the_papers():
    instance = TASKS["autoencoder"].begin(0, None)
    with torch.no_grad():
        for one in instance.model.parameters():
            one.zero_()
    inputs = instance.batch(0)[0]
    expected = inputs.square().sum(1).mean() / 2
    torch.testing.assert_close(instance.loss(instance.model, instance.batch(0)), expected)
    assert isinstance(instance, Instance)
    assert isinstance(instance.evaluate(instance.model), Measured)


def test_the_models_have_the_stated_sizes():
    sizes = {
        name: sum(one.numel() for one in TASKS[name].begin(0, None).model.parameters())
        for name in ("transformer", "lstm", "regression", "quadratic")
    }
    assert sizes["regression"] == 50
    assert sizes["quadratic"] == 100
    assert 50_000 < sizes["transformer"] < 200_000
    assert 50_000 < sizes["lstm"] < 200_000


def test_warming_up_draws_no_random_numbers():
    contestants.warm_up.cache_clear()
    torch.manual_seed(6)
    contestants.warm_up()
    drawn = torch.rand(1)
    torch.manual_seed(6)
    assert torch.equal(torch.rand(1), drawn)
