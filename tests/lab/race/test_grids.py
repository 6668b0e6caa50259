"""The grids: the paper's numbers of settings, and strings that say a setting in one way only."""

from fractions import Fraction
from typing import get_args

import pytest

from pesky.errors import InputError
from pesky.lab import paper
from pesky.lab.benchmarks import BENCHMARKS, METHODS, method_named
from pesky.lab.race.grids import Grid, listed_methods, settings_of
from pesky.lab.runs.settings import parse_settings, settings_text

RIVALS = {"sgd": 68, "adagrad": 17, "smd": 476, "amari": 119, "almeida": 119}
EVERY_SECOND_ETA0 = {f"1e{power}" for power in range(-7, 2)}


def values(method, grid, name):
    return {settings[name] for settings in settings_of(method, grid, "M0") if name in settings}


@pytest.mark.parametrize(("method", "count"), RIVALS.items())
def test_the_full_grids_have_the_papers_sizes(method, count):
    settings = settings_of(method, "full", "digits")
    assert len(settings) == count
    assert len({settings_text(one) for one in settings}) == count


def test_the_full_grids_are_799_settings_in_all():
    assert sum(len(settings_of(method, "full", "M0")) for method in RIVALS) == 799


@pytest.mark.parametrize("grid", get_args(Grid))
@pytest.mark.parametrize("method", ["vsgd-l", "vsgd-b", "vsgd-g"])
def test_vsgd_has_one_setting_the_empty_one(method, grid):
    assert settings_of(method, grid, "digits") == [{}]


def test_the_full_grids_have_the_papers_values():
    rates = {float(value) for value in values("sgd", "full", "eta0")}
    expected = {float(f"{digit}e{power}") for digit in (1, 3) for power in range(-7, 1)} | {10.0}
    assert rates == expected
    assert {Fraction(value) for value in values("sgd", "full", "gamma")} == {
        Fraction(0),
        Fraction(1, 3),
        Fraction(1, 2),
        Fraction(1),
    }
    assert {float(value) for value in values("smd", "full", "mu")} == {1e-4, 1e-3, 1e-2, 1e-1}
    memories = {1e5, 5e4, 1e4, 5e3, 1e3, 1e2, 1e1}
    for method in ("smd", "amari", "almeida"):
        assert {float(value) for value in values(method, "full", "tau")} == memories


def test_the_coarse_grids_are_as_stated():
    counts = [len(settings_of(method, "coarse", "M1")) for method in RIVALS]
    assert counts == [9 * 2, 9, 9 * 2 * 3, 9 * 3, 9 * 3]
    for method in RIVALS:
        assert values(method, "coarse", "eta0") == EVERY_SECOND_ETA0
    assert values("sgd", "coarse", "gamma") == {"0", "1"}
    assert values("smd", "coarse", "mu") == {"1e-3", "1e-2"}
    for method in ("smd", "amari", "almeida"):
        assert values(method, "coarse", "tau") == {"1e4", "1e3", "1e2"}


@pytest.mark.parametrize("method", RIVALS)
def test_the_coarse_grid_is_part_of_the_full_one(method):
    # As text, so that a race over one takes over the runs of the other.
    coarse, full = (
        [settings_text(one) for one in settings_of(method, grid, "M0")] for grid in ("coarse", "full")
    )
    assert set(coarse) < set(full)


@pytest.mark.parametrize("benchmark", paper.BEST_SETTINGS)
def test_the_papers_settings_are_table_1_and_in_the_full_grid(benchmark):
    for method, published in paper.BEST_SETTINGS[benchmark].items():
        (settings,) = settings_of(method, "paper", benchmark)
        assert settings == published
        full = [settings_text(one) for one in settings_of(method, "full", benchmark)]
        assert settings_text(settings) in full


def test_the_paper_lists_39_cells_and_the_robust_form_is_raced_everywhere():
    listed = {name: listed_methods(name) for name in BENCHMARKS}
    assert listed["digits"] == METHODS
    assert sum(len(methods) for name, methods in listed.items() if name != "digits") == 39 + 6
    assert listed["C0"] == ("vsgd-l", "vsgd-b", "vsgd-g", "vsgd-robust", "sgd", "adagrad")
    for name, methods in listed.items():
        assert name == "digits" or set(methods) - set(paper.BEST_SETTINGS[name]) == {
            "vsgd-l",
            "vsgd-b",
            "vsgd-g",
            "vsgd-robust",
        }


@pytest.mark.parametrize(("method", "benchmark"), [("sgd", "digits"), ("smd", "C0"), ("sgd", "toy")])
def test_a_setting_the_paper_does_not_have_is_named(method, benchmark):
    with pytest.raises(InputError, match=rf"{method} for {benchmark}.*--grid"):
        settings_of(method, "paper", benchmark)


@pytest.mark.parametrize("method", METHODS)
def test_settings_as_text_come_back_as_they_were(method):
    for settings in settings_of(method, "full", "M0"):
        text = settings_text(settings)
        assert parse_settings(text) == settings
        assert settings_text(parse_settings(text)) == text
        method_named(method, parse_settings(text), training_samples=100)


def test_fractions_are_kept_as_text():
    assert settings_text({"eta0": "3e-2", "gamma": "1/3"}) == "eta0=3e-2 gamma=1/3"
    assert settings_text({}) == ""
