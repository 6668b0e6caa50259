"""The claims that the first four figures make, from fresh seeds."""

import numpy as np
import pytest

from pesky.lab.figures import bowl, idealised, nonstationary, quadratic
from pesky.lab.figures.nonstationary import steps_to_rise
from pesky.quadratic import Trace


def by_name(picture, key):
    return {row["name"]: row[key] for row in picture.numbers["methods"]}


def test_quadratic_vsgd_beats_fixed_rates_and_a_bad_schedule(fresh_seed):
    final = by_name(quadratic.make(seed=fresh_seed), "final_median_excess_loss")
    assert final["vSGD-l"] < min(final["SGD 1"], final["SGD 0.2"], final["SGD 0.2/t"])
    assert min(final, key=final.get) == "oracle-l"


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
