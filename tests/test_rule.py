"""The rule against the paper's formulas, on every kind of number it promises to take."""

import ast
import inspect
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pesky import rule

FINITE_SQUARES = st.floats(-1e154, 1e154, allow_nan=False)
CURVATURES = st.floats(-1e300, 1e300, allow_nan=False)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_average_with_growing_memory_is_the_arithmetic_mean(samples):
    mean = 0.0
    for count, sample in enumerate(samples, start=1):
        mean = rule.average(mean, sample, float(count))
    assert mean == pytest.approx(np.mean(samples), abs=1e-8)


@given(st.lists(st.tuples(FINITE_SQUARES, CURVATURES), min_size=1, max_size=60))
def test_ratio_memory_and_rate_stay_in_their_bounds(samples):
    state = (0.0, 0.0, 0.0, rule.START_MEMORY)
    for gradient, curvature in samples:
        rate, *state = rule.element_update(gradient, curvature, *state)
        mean_gradient, mean_square, mean_curvature, memory = state
        assert 0 <= rule.noise_ratio(mean_gradient * mean_gradient, mean_square) <= 1
        assert memory >= 2
        assert math.isfinite(rate)
        assert rate >= 0
        assert mean_square >= 0
        assert mean_curvature >= 0


@given(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=60))
def test_the_bounds_hold_in_float32_too(gradients):
    state = [np.float32(0)] * 3 + [np.float32(rule.START_MEMORY)]
    with np.errstate(under="ignore"):
        for gradient in gradients:
            rate, *state = rule.element_update(np.float32(gradient), np.float32(gradient), *state)
            assert state[3] >= 2
            assert np.isfinite(rate)
            assert rate >= 0


def test_nothing_moves_where_nothing_is_known():
    assert rule.noise_ratio(0.0, 0.0) == 0
    assert rule.learning_rate(1.0, 0.0) == 0
    assert rule.learning_rate(1.0, 5e-324) == 0
    assert rule.learning_rate(0.5, 0.25) == 2


def test_a_floor_bounds_the_curvature_and_none_leaves_it():
    assert [rule.at_least(h, 0.5) for h in (0.0, 0.2, 0.5, 3.0)] == [0.5, 0.5, 0.5, 3.0]
    assert rule.at_least(0.2, None) == 0.2
    bounded = rule.element_update(1.0, 0.001, 1.0, 1.0, 0.001, 5.0, 0.1)
    free = rule.element_update(1.0, 0.001, 1.0, 1.0, 0.001, 5.0)
    assert bounded[0] == pytest.approx(10.0)
    assert free[0] == pytest.approx(1000.0)
    assert bounded[1:] == free[1:]


def test_rounding_cannot_lift_the_ratio_above_one():
    assert rule.noise_ratio(1.0, 0.5) == 1
    assert rule.noise_ratio(0.5, 1.0) == 0.5


def test_memory_follows_the_paper_above_its_floor_and_never_sticks_at_one():
    assert rule.next_memory(10.0, 0.25) == pytest.approx((1 - 0.25) * 10 + 1)
    assert rule.next_memory(10.0, 0.0) == 11
    assert rule.next_memory(10.0, 1.0) == 2
    memory = 2.0
    for _ in range(5):
        memory = rule.next_memory(memory, 0.1)
    assert memory > 5


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_power_that_is_not_finite_is_told(bad):
    assert not rule.is_finite_power(bad)
    assert rule.is_finite_power(sys.float_info.max)


def test_slow_start_and_initial_samples_are_the_papers():
    assert [rule.slow_start_factor(d) for d in (1, 10, 7850)] == [1, 1, 785]
    assert [rule.initial_samples(n) for n in (1, 999, 60_000)] == [1, 1, 60]


def test_the_page_is_short_and_leans_on_nothing():
    source = inspect.getsource(rule)
    assert len(source.splitlines()) < 150
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= set(sys.stdlib_module_names) | {"numpy"}
