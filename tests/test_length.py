import math
from dataclasses import astuple

import numpy as np
import pytest

from pesky import length
from pesky.length import Length


def test_curvature_is_measured_exactly_on_a_parabola_and_never_negative():
    slope, bend, scale = 3.0, 0.5, 0.1
    change = -scale * slope + scale * scale / 2 * bend
    assert length.measured_curvature(change, slope, scale) == pytest.approx(bend)
    assert length.measured_curvature(-10.0, slope, scale) == 0


def test_the_scale_is_slope_over_curvature_within_its_bound():
    assert length.next_scale(2.0, 4.0, 1.0) == 0.5
    assert length.next_scale(2.0, 1.0, 1.5) == 1.5
    assert length.next_scale(2.0, 0.0, 1.5) == 1.5
    assert length.next_scale(0.0, 0.0, 1.5) == 0


def test_caution_follows_the_score_and_stays_in_its_bounds():
    assert length.next_caution(1.0, -1.0, 20.0) == 1
    less = length.next_caution(1.0, 0.5, 20.0)
    assert less == pytest.approx(math.exp(-2 * 0.5 / 20), rel=1e-4)
    assert length.next_caution(less, -0.5, 20.0) == pytest.approx(1.0)


def test_a_record_and_its_array_are_the_same_numbers():
    numbers = length.start_array()
    record = length.record_of(numbers)
    assert [getattr(record, name) for name in length.NAMES] == list(numbers) == list(astuple(Length()))
    record.scale = 3.0
    assert numbers[length.NAMES.index("scale")] == 3
    numbers[length.NAMES.index("loss")] = 4.0
    assert record.loss == 4


def test_functions_do_the_same_to_a_length_and_to_a_record():
    """Losses, slopes and leads of a hundred steps, of which every tenth is too long."""
    random = np.random.default_rng(0)
    known, numbers = Length(), length.start_array()
    record = length.record_of(numbers)
    for k in range(100):
        loss, slope, lead = (float(one) for one in random.uniform(0.1, 1, 3))
        for one in (known, record):
            length.add_loss(one, loss)
            if one.scale == 0:
                length.begin(one, slope, 0.01)
            else:
                length.adapt(one)
                length.add_slope(one, slope)
            length.compare(one, lead - 0.3)
            change = one.scale * slope * (2 if k % 10 == 9 else -0.4)
            length.take_measurement(one, change, slope, one.scale / (1 + (k % 10 == 9)), 0.0)
            length.count_move(one)
    assert list(astuple(known)) == list(numbers)
    assert known.shortened == 10
    assert known.averaged == 100


def test_a_direction_that_suddenly_is_longer_does_not_lengthen_the_scale():
    """Slopes and curvatures of p are c and c^2 times those before: the scale is over the same steps."""
    known = Length()
    length.begin(known, 1.0, 0.5)
    for factor in (1.0, 10.0, 100.0):
        before = known.scale
        length.adapt(known)
        assert known.scale <= before
        length.add_slope(known, factor)
        length.add_curvature(known, 2 * factor**2)
