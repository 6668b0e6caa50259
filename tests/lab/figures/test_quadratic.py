"""The claims that the first four figures make, from fresh seeds."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.lab.comparison import PAPER_METHODS, compare, summary
from pesky.lab.figures import bowl, idealised, nonstationary, quadratic
from pesky.lab.figures.nonstationary import steps_to_rise
from pesky.quadratic import NoisyQuadratic, Trace, simulation


def by_name(picture, key):
    return {row["name"]: row[key] for row in picture.numbers["methods"]}


def test_quadratic_vsgd_beats_fixed_rates_and_a_bad_schedule(fresh_seed):
    final = by_name(quadratic.make(seed=fresh_seed), "final_median_excess_loss")
    assert final["vSGD-l"] < min(final["SGD 1"], final["SGD 0.2"], final["SGD 0.2/t"])
    assert min(final, key=final.get) == "oracle-l"


@pytest.mark.slow
@pytest.mark.parametrize("jump", [1.0, 3.0, 10.0])
def test_nonstationary_vsgd_beats_both_cooling_schedules(jump, fresh_seed):
    picture = nonstationary.make(jump=jump, seed=fresh_seed)
    mean = by_name(picture, "mean_loss")
    assert mean["vSGD-l"] < min(mean["SGD 1/t"], mean["SGD 0.2/t"])
    assert {"SGD 1", "SGD 0.2"} <= set(mean)
    assert 0 < picture.numbers["tenfold_rise"]["share_of_jumps_with_rise"] <= 1


def test_steps_to_rise_counts_from_the_jump():
    rate = np.array([1.0, 1.0, 1.0, 2.0, 10.0, 1.0, 1.0, 1.0, 1.0]).reshape(-1, 1, 1)
    nothing = np.zeros(1)
    trace = Trace("vSGD-l", nothing, nothing, rate, nothing, nothing)
    np.testing.assert_array_equal(steps_to_rise(trace, every=3, factor=10.0), [[2.0], [np.inf]])


def test_a_rate_of_zero_before_the_jump_does_not_rise():
    rate = np.array([1.0, 0.0, 0.0, 5.0]).reshape(-1, 1, 1)
    nothing = np.zeros(1)
    trace = Trace("vSGD-l", nothing, nothing, rate, nothing, nothing)
    np.testing.assert_array_equal(steps_to_rise(trace, every=2, factor=10.0), [[np.inf]])


def test_the_summary_tells_loss_from_excess_loss_and_writes_none_for_what_is_not_finite():
    excess = np.array([[1.0, 1.0, 1.0], [2.0, 3.0, 7.0]])
    rate = np.array([0.1, 0.2, 0.6]).reshape(1, 3, 1)
    rejected = np.array([1, 0, 2])
    trace = Trace("a", excess, np.array([10.0, 20.0]), rate, np.zeros((2, 3, 1)), rejected)
    assert summary([trace]) == [
        {
            "name": "a",
            "final_median_excess_loss": 3.0,
            "mean_excess_loss": 2.5,
            "mean_loss": 17.5,
            "final_median_rate": 0.2,
            "rejected_samples": 3,
        }
    ]
    (row,) = summary([replace(trace, excess_loss=np.full((2, 4), 1.7e308))])
    assert row["mean_excess_loss"] is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: idealised.make(samples=1001), ["samples", "1000"]),
        (lambda: nonstationary.make(jumps=1001), ["jumps", "1000"]),
        (lambda: nonstationary.make(every=10**12), ["every", "1000000"]),
        (lambda: bowl.make(ratio=0.0), ["ratio", "0"]),
        (lambda: quadratic.make(start=-1e101), ["start", "1e+100"]),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, words):
    with pytest.raises(InputError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_the_traces_of_all_methods_together_must_fit_into_memory(monkeypatch):
    monkeypatch.setattr(simulation, "MOST_BYTES", 100_000)
    assert len(compare(NoisyQuadratic(), PAPER_METHODS[:2], steps=100, runs=10, seed=0)) == 2
    with pytest.raises(InputError, match=r"steps=100 and runs=10, times 6 .* memory"):
        compare(NoisyQuadratic(), PAPER_METHODS, steps=100, runs=10, seed=0)


def test_a_picture_that_fails_leaves_the_old_one_and_no_temporary(tmp_path, monkeypatch):
    picture = idealised.make()
    picture.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(path, content):
        path.write_text("half a picture")
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="disk full"):
        picture.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_bowl_vsgd_ends_nearest(fresh_seed):
    final = by_name(bowl.make(seed=fresh_seed), "final_median_excess_loss")
    assert min(final, key=final.get) == "vSGD-l"


def test_idealised_states_the_noise_floor():
    assert idealised.make(noise=2.0, curvature=3.0).numbers["noise_floor"] == 6.0


def test_the_same_numbers_give_the_same_svg(tmp_path):
    texts = []
    for number in ("1", "2"):
        folder = tmp_path / number
        folder.mkdir()
        idealised.make().save(folder)
        texts.append((folder / "idealised.svg").read_bytes())
    assert texts[0] == texts[1]


def test_a_narrow_picture_has_its_panels_below_each_other():
    picture = bowl.make(runs=3, steps=20)
    size = picture.figure.get_size_inches().tolist()
    width, height = map(float, re.search(rb'width="(.*?)pt" height="(.*?)pt"', picture.svg()).groups())
    narrow = picture.narrow_svg()
    found = map(float, re.search(rb'width="(.*?)pt" height="(.*?)pt"', narrow).groups())
    assert next(found) < width
    assert next(found) > 2 * height
    assert picture.figure.get_size_inches().tolist() == size
