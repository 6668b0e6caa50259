"""The figures of the race: from a store, or from runs of their own on small data."""

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.lab import paper
from pesky.lab.benchmarks import Benchmark
from pesky.lab.figures import errors, rates, slow_start
from pesky.lab.race.rows import Store
from tests.commands import assert_one_clear_line, pesky_command
from tests.lab.race.made_up import put_m0

SMALL = {name: Benchmark(name, "digits", (64, 10)) for name in ("C0", "M0")}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "race.sqlite") as opened:
        put_m0(opened)
        yield opened


@pytest.mark.parametrize("view", ["mnist", "global"])
def test_errors_show_every_complete_setting_and_say_what_is_missing(store, view):
    picture = errors.make(store, view=view)
    assert picture.name == f"errors-{view}"
    assert picture.numbers["M0"]["settings"] == {"vsgd-l": 1, "sgd": 61}
    assert picture.numbers["M0"]["winners"]["sgd"] == pytest.approx([7.1, 7.6])
    assert set(picture.numbers["missing"]) == set(errors.VIEWS[view]) - {"M0"}
    zoomed = view != "global"
    assert (picture.numbers["M0"]["outside_the_picture"] > 0) == zoomed


def test_errors_of_an_empty_store_name_the_command(tmp_path):
    with (
        Store(tmp_path / "empty.sqlite") as empty,
        pytest.raises(InputError, match="pesky race C0 C1 CR"),
    ):
        errors.make(empty, view="cifar")


def test_rates_are_drawn_for_every_method_that_the_paper_lists(monkeypatch):
    monkeypatch.setattr(rates, "BENCHMARKS", SMALL)
    picture = rates.make(None, runs=2, epochs=1)
    for name in SMALL:
        assert set(picture.numbers[name]) == set(paper.TRAIN[name])
    # The slow start: vSGD's rates grow from small beginnings; SGD's begin at the setting.
    m0 = picture.numbers["M0"]
    assert m0["vsgd-b"]["first_median"] < m0["vsgd-b"]["last_median"]
    assert m0["sgd"]["first_median"] == pytest.approx(0.03, rel=1e-3)


def test_the_study_of_c_has_an_error_for_every_variant_factor_and_epoch():
    picture = slow_start.make(["digits"], runs=1, factors=(1e2, 1e8))
    table = {name: np.array(rows) for name, rows in picture.numbers["digits"].items()}
    assert {name: rows.shape for name, rows in table.items()} == dict.fromkeys(table, (2, 3))
    # So slow a start neutralises the whole run: the error stays at chance.
    assert np.all(table["vsgd-g"][1] > 50)
    assert table["vsgd-b"][0, 2] < 10


@pytest.mark.subprocess
def test_bad_input_is_one_clear_line(tmp_path):
    result = pesky_command("figure", "slow-start", "M9", cwd=tmp_path)
    assert_one_clear_line(result, "M9")
    result = pesky_command("figure", "errors", "--view", "stars", cwd=tmp_path)
    assert_one_clear_line(result, "--view")
    result = pesky_command("figure", "rates", "--data", "nowhere", cwd=tmp_path)
    assert_one_clear_line(result, "nowhere")
