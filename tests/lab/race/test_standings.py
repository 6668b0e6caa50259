"""From rows to tables: Welch's bold, agreement with the paper, and the order of the leaderboard."""

import math
import statistics

import numpy as np
import pytest
from scipy.stats import ttest_ind

from pesky.lab import paper
from pesky.lab.benchmarks import Benchmark
from pesky.lab.race.rows import Store
from pesky.lab.race.standings import SIGNIFICANCE, MeanError, agrees, standings
from tests.lab.race.toys import (
    put_final_runs,
    put_tuning_runs,
    some_row,
    toy_contest,
    toy_race,
)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.sqlite") as opened:
        yield opened


def leaderboard(store, tests, trains=None, name="toy", epochs=6):
    """The standings of vSGDs whose fresh runs are made up; None is a run that diverged."""
    benchmark = Benchmark(name, "toy", (6, 5, 3))
    contest = toy_contest(benchmark=benchmark, epochs=epochs)
    for method, values in tests.items():
        put_tuning_runs(store, contest, method, {}, some_row(), some_row())
        put_final_runs(store, contest, method, {}, values, (trains or tests)[method])
    seeds = max(len(values) for values in tests.values())
    race = toy_race(store, methods=tests, benchmark=benchmark, seeds=seeds, epochs=epochs)
    return {row.method: row for row in standings(race)}


def welch_p(one, other):
    """Welch's test from its definition, the tail by summing Student's density."""
    variances = [statistics.variance(values) / len(values) for values in (one, other)]
    t = abs(statistics.fmean(one) - statistics.fmean(other)) / math.sqrt(sum(variances))
    freedom = sum(variances) ** 2 / sum(
        variance**2 / (len(values) - 1) for variance, values in zip(variances, (one, other), strict=True)
    )
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    x, step = np.linspace(0, t, 100_001, retstep=True)
    density = scale / math.sqrt(freedom * math.pi) * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    return 1 - 2 * float((density.sum() - (density[0] + density[-1]) / 2) * step)


BEST = [7.1, 7.3, 7.2, 7.4, 7.0]
RIVAL = [0.0, 0.6, 0.2, 0.5, 0.3, -0.1]  # about its place


def test_bold_changes_where_welchs_p_is_one_percent(store):
    low, high = 7.2, 9.0
    for _ in range(40):
        middle = (low + high) / 2
        if welch_p([middle + x for x in RIVAL], BEST) >= 0.01:
            low = middle
        else:
            high = middle
    rows = leaderboard(
        store,
        {
            "vsgd-l": BEST,
            "vsgd-b": [low - 1e-6 + x for x in RIVAL],
            "vsgd-g": [high + 1e-6 + x for x in RIVAL],
        },
    )
    assert [rows[method].test.bold for method in ("vsgd-l", "vsgd-b", "vsgd-g")] == [True, True, False]


def test_a_hand_made_example(store):
    # Means 10 and 12, variances 1 and 4 over three runs each: t = 2 / sqrt(5/3) = 1.549 with
    # (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2) = 2.94 degrees of freedom; p is about 0.22.
    rows = leaderboard(store, {"vsgd-l": [10.0, 12.0, 14.0], "vsgd-b": [9.0, 10.0, 11.0]})
    assert welch_p([10, 12, 14], [9, 10, 11]) == pytest.approx(0.22, abs=0.01)
    assert (rows["vsgd-l"].test.bold, rows["vsgd-b"].test.bold) == (True, True)
    assert rows["vsgd-l"].test.mean == 12.0
    assert rows["vsgd-l"].test.deviation == 2.0
    assert rows["vsgd-l"].test.error == pytest.approx(2 / math.sqrt(3))


def test_bold_is_scipys_and_ours_by_definition(store, fresh_seed):
    rng = np.random.default_rng(fresh_seed)
    samples = {
        method: list(rng.normal(10 + shift, 0.2 + 0.4 * rng.random(), size=10))
        for method, shift in (("vsgd-l", 0.0), ("vsgd-b", 0.3), ("vsgd-g", 0.8))
    }
    rows = leaderboard(store, samples)
    best = min(samples.values(), key=statistics.fmean)
    for method, values in samples.items():
        p = 1.0 if values is best else float(ttest_ind(values, best, equal_var=False).pvalue)
        assert values is best or p == pytest.approx(welch_p(values, best), abs=1e-6)
        assert rows[method].test.bold == (p >= SIGNIFICANCE)


def test_bold_is_of_train_and_test_apart(store):
    rows = leaderboard(
        store,
        tests={"vsgd-l": [1.0, 1.1, 1.2], "vsgd-b": [9.0, 9.1, 9.2]},
        trains={"vsgd-l": [8.0, 8.1, 8.2], "vsgd-b": [2.0, 2.1, 2.2]},
    )
    assert (rows["vsgd-l"].test.bold, rows["vsgd-l"].train.bold) == (True, False)
    assert (rows["vsgd-b"].test.bold, rows["vsgd-b"].train.bold) == (False, True)


@pytest.mark.parametrize(
    ("rival", "bold"),
    [
        ([7.5] * 4, True),
        ([7.6] * 4, False),
        ([7.5, 7.5, 7.5, 7.6], True),
        ([90.0, 90.1, 90.0, 90.1], False),
    ],
)
def test_runs_that_are_all_the_same_are_compared_without_a_warning(store, rival, bold):
    # Happens: of few test samples, or with a network that is stuck.
    rows = leaderboard(store, {"vsgd-l": [7.5] * 4, "vsgd-b": rival})
    assert (rows["vsgd-l"].test.bold, rows["vsgd-b"].test.bold) == (True, bold)


def test_one_run_each_makes_the_best_bold(store):
    rows = leaderboard(store, {"vsgd-l": [8.0], "vsgd-b": [7.0]})
    assert (rows["vsgd-b"].test.bold, rows["vsgd-b"].test.deviation) == (True, 0.0)


def test_the_best_test_error_comes_first_and_no_result_last(store):
    contest = toy_contest()
    for method in ("vsgd-l", "vsgd-b"):
        put_tuning_runs(store, contest, method, {}, some_row(status="diverged"), some_row())
    put_tuning_runs(store, contest, "adagrad", {"eta0": "1e-1"}, some_row(), some_row())
    put_tuning_runs(store, contest, "vsgd-g", {}, some_row(), some_row())
    put_final_runs(store, contest, "vsgd-g", {}, [9.0, 9.1])
    put_final_runs(store, contest, "adagrad", {"eta0": "1e-1"}, [5.0, 5.1])
    rows = standings(toy_race(store, methods=("vsgd-l", "vsgd-g", "vsgd-b", "adagrad")))
    assert [row.method for row in rows] == ["adagrad", "vsgd-g", "vsgd-l", "vsgd-b"]
    assert [row.settings for row in rows] == [{"eta0": "1e-1"}, {}, None, None]
    assert (rows[-1].test, rows[-1].train, rows[-1].failed) == (None, None, 0)
    assert [row.settings_tried for row in rows] == [9, 1, 1, 1]


def test_fresh_runs_that_diverged_are_counted_and_not_averaged(store):
    row = leaderboard(store, {"vsgd-l": [7.0, None, 8.0, None]})["vsgd-l"]
    assert (row.failed, row.test.runs, row.test.mean) == (2, 2, 7.5)


def test_the_cost_of_tuning_is_that_of_all_settings_and_no_more(store):
    contest = toy_contest()
    put_tuning_runs(store, contest, "adagrad", {"eta0": "1e-1"}, some_row(), some_row())
    put_tuning_runs(store, contest, "adagrad", {"eta0": "1e-2"}, some_row(status="cut"), some_row())
    put_tuning_runs(store, contest, "sgd", {"eta0": "1e-1", "gamma": "0"}, some_row(), some_row())
    put_final_runs(store, contest, "adagrad", {"eta0": "1e-1"}, [5.0, 5.1])
    (row,) = standings(toy_race(store, methods=("adagrad",)))
    assert (row.tuning_samples, row.tuning_seconds) == (4 * 600, pytest.approx(4 * 0.012))


def test_the_papers_numbers_stand_beside_ours(store):
    published = paper.TEST["M0"]["vsgd-l"]
    row = leaderboard(store, {"vsgd-l": [published, published + 0.01]}, name="M0")["vsgd-l"]
    assert (row.test.paper, row.test.agrees) == (published, True)
    assert (row.train.paper, row.train.agrees) == (paper.TRAIN["M0"]["vsgd-l"], False)
    row = leaderboard(store, {"vsgd-l": [1.0, 2.0]})["vsgd-l"]
    assert (row.test.paper, row.test.agrees) == (None, None)


def test_other_epochs_than_the_papers_are_not_compared_with_it(store):
    published = paper.TEST["M0"]["vsgd-l"]
    row = leaderboard(store, {"vsgd-l": [published, published]}, name="M0", epochs=5)["vsgd-l"]
    for cell in (row.test, row.train):
        assert (cell.paper, cell.agrees) == (None, None)


@pytest.mark.parametrize(
    ("mean", "error", "expected"),
    [
        (10.0, 0.0, True),
        (10.49, 0.0, True),
        (9.51, 0.0, True),
        (10.51, 0.0, False),
        (9.49, 0.0, False),
        (10.9, 0.46, True),
        (10.9, 0.44, False),
        (9.1, 0.46, True),
    ],
)
def test_agreement_is_five_percent_or_two_standard_errors(mean, error, expected):
    assert agrees(mean, error, 10.0) is expected
    cell = MeanError(mean, error * math.sqrt(10), 10, bold=False, paper=10.0)
    assert cell.agrees is expected
    assert cell.numbers()["agrees"] is expected
