"""One contest: what determines a run, when one is hopeless, who wins, and what tuning may look at."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.lab import paper
from pesky.lab.benchmarks import Benchmark, Task, method_named
from pesky.lab.race.contest import CUT_FACTOR, CUT_SHARE, PROTOCOL
from pesky.lab.race.grids import settings_of
from pesky.lab.race.recorded import Recorded
from pesky.lab.race.rows import Store
from pesky.lab.race.runner import Race
from pesky.lab.race.tuning import FINAL_SEEDS_FROM, TUNING_SEEDS
from pesky.lab.runs.completing import Interrupted
from pesky.lab.runs.settings import parse_settings
from pesky.online import fit
from tests.lab.race.toys import (
    TOY,
    put_tuning_runs,
    rows_of_race,
    some_row,
    toy_contest,
    toy_race,
    toy_task,
    without_times,
)

RIVALS = ("adagrad", "sgd", "almeida")
GO = threading.Event()  # never set


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """The rows of a race in which runs finished, diverged and were cut."""
    path = tmp_path_factory.mktemp("raced") / "runs.sqlite"
    rows = dict(rows_of_race(path, methods=("vsgd-l", "vsgd-b", *RIVALS)))
    assert {row["status"] for row in rows.values()} == {"finished", "diverged", "cut"}
    return rows


def test_rows_of_an_earlier_robust_form_do_not_count_and_all_others_do(store):
    contest = toy_contest(epochs=paper.EPOCHS)
    keys = {method: contest.key(method, {}, TUNING_SEEDS[0]) for method in ("vsgd-l", "vsgd-robust")}
    assert "vsgd=robust-" in keys["vsgd-robust"].protocol
    assert keys["vsgd-l"].protocol == PROTOCOL != keys["vsgd-robust"].protocol
    for key in keys.values():
        store.finish(key._replace(protocol=PROTOCOL), some_row())
    assert Recorded(store, "toy").methods == ("vsgd-l",)
    store.finish(keys["vsgd-robust"], some_row())
    assert Recorded(store, "toy").methods == ("vsgd-l", "vsgd-robust")


def run_of(contest, key, store):
    return contest.run(key, contest.cut_limit(key, store), GO)


def trained(task, key, epochs):
    """A run done by hand: the network, or None if it diverged."""
    network = TOY.network(key.seed)
    method = method_named(key.method, parse_settings(key.settings), len(task.train_inputs))
    result = fit(network, method, task.train_inputs, task.train_targets, epochs=epochs, seed=key.seed)
    return network if result.status == "finished" else None


def test_a_rival_is_cut_exactly_if_its_first_epoch_is_that_much_worse_than_vsgd_l(raced):
    task = toy_task()

    def first_error(key):
        """The test error after an epoch."""
        network = trained(task, key, epochs=1)
        return None if network is None else network.error(task.test_inputs, task.test_targets)

    limits = {
        key.seed: CUT_FACTOR * first_error(key)
        for key in raced
        if key.method == "vsgd-l" and key.seed in TUNING_SEEDS
    }
    for key, row in raced.items():
        if key.method in RIVALS and key.seed in TUNING_SEEDS:
            error = first_error(key)
            untrained = TOY.network(key.seed).error(task.test_inputs, task.test_targets)
            limit = max(limits[key.seed], CUT_SHARE * untrained)
            assert (row["status"] == "cut") == (error is not None and error > limit), key
            assert row["first_epoch_test"] == error


def test_a_run_needs_nothing_but_the_yardstick_of_its_seed(raced, store):
    contest = toy_contest()
    for key in contest.yardstick_keys():
        store.finish(key, run_of(contest, key, store))
    yardstick = store.rows()
    for key in [key for key in raced if key.seed in TUNING_SEEDS][::-5]:
        row = run_of(contest, key, store)
        assert {**vars(row), "seconds": None} == raced[key]
    assert store.rows() == yardstick


def test_a_run_that_was_cut_learnt_from_one_epoch_and_has_no_final_error(raced):
    cut = [row for row in raced.values() if row["status"] == "cut"]
    for row in cut:
        assert (row["train"], row["test"], row["diverged_at"]) == (None, None, None)
        assert (row["samples"], row["first_epoch_test"] > 0) == (200, True)


def test_a_run_that_diverged_says_where_and_has_no_final_error(raced):
    for row in raced.values():
        if row["status"] == "diverged":
            assert (row["train"], row["test"]) == (None, None)
            assert 0 < row["diverged_at"] <= 3 * 200


def test_a_run_that_finished_has_the_errors_of_the_same_run_done_by_hand(raced):
    task = toy_task()
    for key in [key for key, row in raced.items() if row["status"] == "finished"][::7]:
        network = trained(task, key, epochs=3)
        assert raced[key]["train"] == network.error(task.train_inputs, task.train_targets)
        assert raced[key]["test"] == network.error(task.test_inputs, task.test_targets)
        assert raced[key]["samples"] == 600


def faked_yardstick(store, contest, first):
    for key in contest.yardstick_keys():
        store.finish(key, some_row(first=first))


def test_vsgd_and_fresh_runs_are_never_cut(store):
    contest = toy_contest()
    faked_yardstick(store, contest, first=1e-9)
    rival = {"eta0": "1e-7"}
    assert run_of(contest, contest.key("adagrad", rival, 0), store).status == "cut"
    assert run_of(contest, contest.key("adagrad", rival, FINAL_SEEDS_FROM), store).status == "finished"
    for method in ("vsgd-b", "vsgd-g"):
        assert run_of(contest, contest.key(method, {}, 0), store).status == "finished"


def test_a_yardstick_that_diverged_cuts_nothing(store):
    contest = toy_contest()
    faked_yardstick(store, contest, first=None)
    assert run_of(contest, contest.key("adagrad", {"eta0": "1e-7"}, 0), store).status == "finished"


def test_a_race_of_one_epoch_cuts_nothing(store):
    toy_race(store, methods=("adagrad",), epochs=1).run()
    assert {row.status for _, row in store.rows()} == {"finished"}


def test_without_the_yardstick_no_rival_runs(store):
    contest = toy_contest()
    with pytest.raises(InputError, match="vsgd-l has not been run at seed 1"):
        run_of(contest, contest.key("sgd", {"eta0": "1e-1", "gamma": "0"}, 1), store)


def test_the_yardstick_is_run_first_even_if_vsgd_l_does_not_race(store):
    race = toy_race(store, methods=("adagrad",))
    done = []
    race.watch = lambda progress: done.append(progress.last and progress.last[0])
    race.run()
    done = [key for key in done if key is not None]
    assert {key.method for key in done[:2]} == {"vsgd-l"}
    assert {key.seed for key in done[:2]} == set(TUNING_SEEDS)
    assert set(race.winners()) == {"adagrad"}


GRID = settings_of("adagrad", "coarse", "toy")
FIRST, SECOND, THIRD = GRID[2], GRID[4], GRID[6]


def winner(store):
    return toy_contest().best_settings(store, "adagrad", "coarse")


def put(store, settings, *rows):
    put_tuning_runs(store, toy_contest(), "adagrad", settings, *rows)


def test_the_lowest_mean_wins(store):
    put(store, FIRST, some_row(5.0), some_row(9.0))
    put(store, SECOND, some_row(6.5), some_row(6.5))
    put(store, THIRD, some_row(1.0), some_row(30.0))
    assert winner(store) == SECOND


def test_test_error_decides_not_training_error(store):
    put(store, FIRST, some_row(5.0, train=4.0), some_row(5.0, train=4.0))
    put(store, SECOND, some_row(6.0, train=0.0), some_row(6.0, train=0.0))
    assert winner(store) == FIRST


def test_of_equals_the_first_in_the_grid_wins_in_whatever_order_they_came(store):
    for settings in (THIRD, FIRST, SECOND):
        put(store, settings, some_row(5.0), some_row(7.0))
    assert winner(store) == FIRST


@pytest.mark.parametrize("status", ["cut", "diverged"])
def test_a_setting_one_of_whose_runs_failed_never_wins(store, status):
    put(store, FIRST, some_row(0.0), some_row(status=status))
    put(store, SECOND, some_row(status=status, first=0.0), some_row(0.0))
    put(store, THIRD, some_row(90.0), some_row(90.0))
    assert winner(store) == THIRD


@pytest.mark.parametrize("status", ["cut", "diverged"])
def test_failed_runs_do_not_win_whatever_errors_they_are_said_to_have(store, status):
    wrong = replace(some_row(0.0), status=status)
    put(store, FIRST, wrong, wrong)
    put(store, SECOND, some_row(90.0), some_row(90.0))
    assert winner(store) == SECOND


def test_a_setting_that_was_run_once_does_not_win(store):
    store.finish(toy_contest().key("adagrad", FIRST, 0), some_row(0.0))
    put(store, SECOND, some_row(90.0), some_row(90.0))
    assert winner(store) == SECOND


def test_settings_out_of_the_grid_do_not_win(store):
    put(store, {"eta0": "3e-1"}, some_row(0.0), some_row(0.0))
    put(store, SECOND, some_row(90.0), some_row(90.0))
    assert winner(store) == SECOND


def test_a_method_all_of_whose_settings_failed_has_no_winner_and_no_fresh_runs(store):
    for settings in GRID:
        put(store, settings, some_row(status="cut"), some_row(status="diverged"))
    assert winner(store) is None
    race = toy_race(store, methods=("adagrad",))
    race.run()
    assert (race.winners(), race.final_keys(), race.results()) == ({}, [], {})


def test_the_seeds_of_fresh_runs_are_no_tuning_seeds():
    contest = toy_contest()
    seeds = [key.seed for key in contest.final_keys("sgd", {"eta0": "1e-1", "gamma": "0"}, 10)]
    assert (len(set(seeds)), set(seeds) & set(TUNING_SEEDS)) == (10, set())
    assert len(TUNING_SEEDS) == 2


@pytest.mark.parametrize(
    "other",
    [
        toy_contest(epochs=4),
        toy_contest(select="validation"),
        toy_contest(task=toy_task(seed=4)),
        toy_contest(benchmark=Benchmark("other", "toy", (6, 5, 3))),
        toy_contest(benchmark=Benchmark("toy", "toy", (6, 4, 3))),
        toy_contest(benchmark=Benchmark("toy", "toy", (6, 5, 3), "squared-error")),
    ],
)
def test_what_determines_a_run_is_in_its_key(other):
    assert other.key("vsgd-l", {}, 0) != toy_contest().key("vsgd-l", {}, 0)


@pytest.mark.parametrize("part", ["train_inputs", "train_targets", "test_inputs", "test_targets"])
def test_one_changed_number_in_the_data_is_another_contest(part):
    task = toy_task()
    changed = getattr(task, part).copy()
    changed.flat[-1] += 1
    assert toy_contest(replace(task, **{part: changed})).data != toy_contest(task).data
    assert toy_contest(toy_task()).data == toy_contest(task).data


def test_data_may_lie_in_memory_in_any_way():
    task = toy_task()
    turned = replace(task, train_inputs=np.asfortranarray(task.train_inputs))
    assert toy_contest(turned).data == toy_contest(task).data


def held_out():
    """The split by hand: every tenth training sample is kept for validation."""
    task = toy_task()
    kept = np.arange(len(task.train_inputs)) % 10 == 9
    inputs, labels = task.train_inputs, task.train_targets
    return Task(inputs[~kept], labels[~kept], inputs[kept], labels[kept])


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    path = tmp_path_factory.mktemp("validated") / "runs.sqlite"
    return dict(rows_of_race(path, methods=("vsgd-l", "adagrad", "sgd"), select="validation"))


def test_tuning_on_held_out_samples_is_told_in_the_key_and_fresh_runs_are_on_all(validated):
    for key in validated:
        assert key.split == ("validation-tenth" if key.seed in TUNING_SEEDS else "full")
    assert {key.split for key in validated} == {"validation-tenth", "full"}


def test_tuning_errors_are_those_of_held_out_training_samples(validated):
    split = held_out()
    compared = 0
    for key, row in validated.items():
        if key.split != "full" and row["status"] == "finished":
            network = trained(split, key, epochs=3)
            assert row["samples"] == 3 * 180
            assert row["test"] == network.error(split.test_inputs, split.test_targets)
            assert row["train"] == network.error(split.train_inputs, split.train_targets)
            compared += 1
    assert compared > 10


def test_tuning_on_held_out_samples_never_looks_at_the_test_set(validated, tmp_path):
    task = toy_task()
    scrambled = replace(task, test_inputs=-task.test_inputs, test_targets=2 - task.test_targets)
    others = dict(
        rows_of_race(
            tmp_path / "runs.sqlite",
            methods=("vsgd-l", "adagrad", "sgd"),
            select="validation",
            task=scrambled,
        )
    )
    data = next(iter(others)).data
    same = {key._replace(data=data): row for key, row in validated.items()}
    assert same.keys() == others.keys()  # the winners too
    assert all(same[key] == others[key] for key in same if key.split != "full")
    assert any(same[key] != others[key] for key in same if key.split == "full")


def test_fresh_runs_do_not_depend_on_how_settings_were_chosen(raced, validated):
    common = [key for key in validated if key.split == "full" and key in raced]
    assert {"vsgd-l"} <= {key.method for key in common}
    assert all(validated[key] == raced[key] for key in common)


def test_too_few_samples_to_hold_any_out_is_told(store):
    contest = toy_contest(toy_task(train=9), select="validation")
    with pytest.raises(InputError, match=r"too small.*--select test"):
        Race(contest, store, ("vsgd-l",), "coarse", 1).run()


def test_an_autoencoder_is_its_own_target(tmp_path):
    task = toy_task()
    benchmark = Benchmark("toy", "toy", (6, 4, 6), "squared-error")
    images = Task(task.train_inputs, None, task.test_inputs, None)
    for select in ("test", "validation"):
        rows = rows_of_race(
            tmp_path / f"{select}.sqlite",
            methods=("vsgd-b", "adagrad"),
            task=images,
            benchmark=benchmark,
            select=select,
        )
        finished = [row["test"] for key, row in rows if row["status"] == "finished" and key.seed >= 100]
        assert len(finished) == 4
        assert all(0 < error < np.mean(np.sum(task.test_inputs**2, axis=1)) for error in finished)


def test_a_run_that_is_interrupted_leaves_nothing_behind(store):
    stop = threading.Event()
    stop.set()
    race = toy_race(store)
    with pytest.raises(Interrupted):
        race.contest.run(race.contest.key("vsgd-l", {}, 0), float("inf"), stop)
    with pytest.raises(Interrupted):
        race.run(stop)
    assert store.rows() == []
    with Store(store.path) as other:
        assert all(other.claim(key) for key in race.contest.yardstick_keys())


def test_a_race_stopped_midway_goes_on_to_the_same_rows(store, tmp_path):
    race, stop = toy_race(store), threading.Event()
    race.watch = lambda progress: stop.set() if progress.done > 20 else None
    with pytest.raises(Interrupted):
        race.run(stop)
    assert 10 < len(store.rows()) < 40
    toy_race(store).run()
    assert without_times(store.rows()) == rows_of_race(tmp_path / "other.sqlite")


def test_a_finished_race_does_nothing_again(store, monkeypatch):
    toy_race(store).run()
    rows = store.rows()
    monkeypatch.setattr("pesky.lab.runs.training.fit", None)
    race = toy_race(store)
    last = []
    race.watch = lambda progress: last.append((progress.done, progress.total))
    race.run()
    assert store.rows() == rows
    assert all(done == total for done, total in last)


def test_an_error_in_a_run_ends_the_race_and_gives_up_the_claim(store, monkeypatch):
    def broken(*arguments, **options):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("pesky.lab.runs.training.fit", broken)
        with pytest.raises(MemoryError):
            toy_race(store, jobs=2).run()
    with Store(store.path) as other:
        assert all(other.claim(key) for key in toy_contest().yardstick_keys())


@pytest.mark.parametrize("jobs", [2, 5])
def test_results_do_not_depend_on_the_number_of_jobs(raced, tmp_path, jobs):
    methods = ("vsgd-l", "vsgd-b", *RIVALS)
    assert dict(rows_of_race(tmp_path / "runs.sqlite", methods=methods, jobs=jobs)) == raced


def test_results_do_not_depend_on_the_order_of_methods(raced, tmp_path):
    methods = (*RIVALS[::-1], "vsgd-b", "vsgd-l")
    assert dict(rows_of_race(tmp_path / "runs.sqlite", methods=methods)) == raced
