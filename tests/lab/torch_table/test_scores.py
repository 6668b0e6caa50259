"""Scores, profiles, ranks and failures against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest

from pesky.lab.torch_table.page import torch_page
from pesky.lab.torch_table.rows import Row, Store
from pesky.lab.torch_table.scores import Ends, cost_per_step, failures, is_level, score, scores_of
from pesky.lab.torch_table.splits import TEST
from tests.lab.torch_table.stored import put, section
from tests.lab.toys import STEPS, TOY, TOYS, toy_table

NAMES = ("vsgd", "adam", "dog")


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.sqlite") as opened:
        yield opened


def row(train, test=5.0, start=(3.0, 90.0), equal=None, cost=STEPS):
    marks = f"start {start[0]} {start[1]};" + (f"equal-cost {equal[0]} {equal[1]};" if equal else "")
    return Row("finished", train, test, None, STEPS, 0.5, f"{marks}{STEPS} 0.5 {train} {cost}")


def standings(store, *, seeds=1, tasks=TOYS, names=NAMES):
    return toy_table(*names, seeds=seeds, tasks=tasks).standings(store)


def test_a_score_is_the_way_that_is_left_of_the_best_ones():
    assert score(3.0, 1.0, 3.0) == 1.0
    assert score(-1.0, -2.0, 2.0) == 0.25  # losses may be negative
    assert score(5.0, 1.0, 3.0) == 2.0
    assert score(math.inf, 1.0, 3.0) == math.inf
    assert [score(end, 4.0, 3.0) for end in (4.0, 5.0)] == [0.0, math.inf]


def test_two_percent_apart_is_level():
    assert is_level(Ends(3.0, {"a": 1.0, "b": 1.019}))
    assert not is_level(Ends(3.0, {"a": 1.0, "b": 1.03}))
    assert is_level(Ends(3.0, {"a": -1.0, "b": -0.99}))
    assert not is_level(Ends(3.0, {"a": 1.0, "b": math.inf}))


def test_scores_profiles_and_ranks(store):
    for task, ends in {"toy": (1.0, 2.0, 1.5), "other-toy": (2.0, 1.0, 1.0)}.items():
        for name, end in zip(NAMES, ends, strict=True):
            put(store, name, row(end), task=task)
    found = scores_of(standings(store), "train")
    assert found.scores == {
        "vsgd": {"toy": 0.0, "other-toy": 0.5},
        "adam": {"toy": 0.5, "other-toy": 0.0},
        "dog": {"toy": 0.25, "other-toy": 0.0},
    }
    assert found.ranks == {"dog": 1.75, "vsgd": 2.0, "adam": 2.25}
    assert found.firsts == {"vsgd": 1, "adam": 1, "dog": 1}
    assert [found.share("dog", most) for most in (0.0, 0.2, 0.25)] == [0.5, 0.5, 1.0]
    assert (found.counted, found.level, found.unfinished) == (["toy", "other-toy"], [], [])


def test_means_over_seeds_are_scored(store):
    put(store, "vsgd", row(1.0, start=(2.0, 9.0)), row(2.0, start=(4.0, 9.0)))
    put(store, "adam", row(2.0, start=(2.0, 9.0)), row(2.5, start=(4.0, 9.0)))
    found = scores_of(standings(store, seeds=2, tasks=(TOY,), names=("vsgd", "adam")), "train")
    assert found.scores == {"vsgd": {"toy": 0.0}, "adam": {"toy": 0.5}}  # 2.25 of 1.5 to 3


def test_level_and_unfinished_tasks_do_not_count(store):
    for name, end in zip(NAMES, (1.0, 1.01, 1.019), strict=True):
        put(store, name, row(end))
    put(store, "vsgd", row(1.0), task="other-toy")
    found = scores_of(standings(store), "train")
    assert (found.counted, found.level, found.unfinished) == ([], ["toy"], ["other-toy"])
    assert found.ranks == {}
    assert found.share("vsgd", 1.0) is None


def test_who_has_run_nothing_is_not_compared(store):
    for name, end in zip(NAMES, (1.0, 2.0, 3.0), strict=True):
        put(store, name, row(end))
    found = scores_of(standings(store, tasks=(TOY,), names=(*NAMES, "momo", "adam-tuned")), "train")
    assert set(found.ranks) == set(NAMES)


def test_the_tuned_and_the_papers_rule_are_not_ranked(store):
    for place, name in enumerate(("vsgd", "vsgd-paper", "adam", "sgd-tuned")):
        put(store, name, row(1.0 + place), row(1.0 + place))
    scores = scores_of(toy_table(tasks=(TOY,)).standings(store), "train")
    assert scores.ranks == {"vsgd": 1.0, "adam": 2.0}


def test_equal_cost_is_where_adams_run_ends(store):
    put(store, "vsgd", row(1.0, 4.0, equal=(2.0, 6.0), cost=2 * STEPS))
    put(store, "adam", row(1.5, 5.0))
    put(store, "dog", row(1.2, 4.5))
    some = standings(store, tasks=(TOY,))
    assert scores_of(some, "train").ranks == {"vsgd": 1.0, "dog": 2.0, "adam": 3.0}
    assert scores_of(some, "train", equal_cost=True).ranks == {"dog": 1.0, "adam": 2.0, "vsgd": 3.0}
    by_test = scores_of(some, "test", equal_cost=True)
    assert by_test.scores["vsgd"] == {"toy": pytest.approx(1.5 / 85.5)}
    assert [cost_per_step(some, name) for name in NAMES] == [2.0, 1.0, 1.0]


def test_rows_without_counts_are_not_compared_at_equal_cost(store):
    put(store, "vsgd", Row("finished", 1.0, 4.0, None, STEPS, 0.5, f"1 0.1 3;{STEPS} 0.5 1"))
    put(store, "adam", Row("finished", 2.0, 5.0, None, STEPS, 0.5, f"1 0.1 3;{STEPS} 0.5 2"))
    some = standings(store, tasks=(TOY,), names=("vsgd", "adam"))
    assert scores_of(some, "train").scores == {"vsgd": {"toy": 0.0}, "adam": {"toy": 0.5}}
    assert scores_of(some, "test").scores == {"vsgd": {}, "adam": {}}  # they do not tell its start
    assert scores_of(some, "test").ranks == {"vsgd": 1.0, "adam": 2.0}
    assert scores_of(some, "train", equal_cost=True).unfinished == ["toy"]
    assert cost_per_step(some, "vsgd") is None


def test_failures_are_told_with_their_reason_ours_first(store):
    names = ("vsgd", "vsgd-backward", "adam", "dog", "prodigy")
    ends = {"vsgd": 2.5, "vsgd-backward": 1.0, "adam": 1.2, "dog": 3.5, "prodigy": 1.1}
    for name, end in ends.items():
        put(store, name, row(end))
    found = failures(standings(store, tasks=(TOY,), names=names))
    # The gains are 0.5, 2, 1.8, -0.5 and 1.9: half the median is 0.9.
    assert [(one.contestant.name, one.reason) for one in found] == [
        ("vsgd", "gains less than half of what the median contestant gains"),
        ("dog", "ends above its start"),
    ]


def test_diverged_and_too_slow_are_failures(store):
    put(store, "adam", row(1.0), Row("diverged", None, None, 5, 5, 0.1, "1 0.1 3 1"))
    put(store, "vsgd", row(1.0), Row("too slow", None, None, None, 5, 99.0, "1 9 3 1"))
    put(store, "dog", row(1.0), row(1.0))
    found = failures(standings(store, seeds=2, tasks=(TOY,)))
    assert [(one.contestant.name, one.reason) for one in found] == [
        ("vsgd", "too slow in 1 of 2 runs"),
        ("adam", "diverged in 1 of 2 runs"),
    ]


def test_the_page_lists_failures_on_top_and_shows_only_ranks_of_the_test_split(store):
    hidden = replace(TOY, name=TEST[0])
    for name, end in zip(NAMES, (2.8765, 1.2345, 1.1), strict=True):
        put(store, name, row(end))
        put(store, name, row(end, 3.4567 + end), task=hidden.name)
    page = torch_page(toy_table(*NAMES, seeds=1, tasks=(TOY, hidden)), store, "pesky torch-table")
    top = page.split("## ")[1]
    assert top.startswith("Failures")
    assert "- VSGD robust: gains less than half of what the median contestant gains: toy\n" in top
    part = section(page, "## Test split")
    assert hidden.name in part
    assert "| VSGD robust | 3.00 | 3.00 | 0 | 1 |" in part
    assert f"### {hidden.name}" not in page
    assert "4.557" not in page  # no number of it
    assert page.count("2.877") == 2  # in two tables of the task that is not hidden


def test_a_test_split_that_nobody_has_run_says_so(store):
    page = torch_page(toy_table(*NAMES, tasks=(TOY, replace(TOY, name=TEST[0]))), store, "x")
    assert "It has not been run." in section(page, "## Test split")
    assert "`pesky torch-table --test-split`" in section(page, "## What has not been run")
