"""The rule against the paper's formulas, on every kind of number it promises to take."""

import ast
import inspect
import math
import sys

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.extending import register_jitable

from pesky import rule

# Each function with as many positive arguments as it takes.
ARITHMETIC = {
    "average": 3,
    "larger": 2,
    "noise_ratio": 2,
    "learning_rate": 2,
    "at_least": 2,
    "next_memory": 2,
    "element_update": 6,
    "is_finite_power": 1,
    "measured_curvature": 3,
    "next_scale": 3,
    "next_caution": 3,
}

FINITE_SQUARES = st.floats(-1e154, 1e154, allow_nan=False)
CURVATURES = st.floats(-1e300, 1e300, allow_nan=False)


@pytest.fixture(scope="module")
def compiled():
    for name in ARITHMETIC:
        register_jitable(error_model="numpy")(getattr(rule, name))
    return {name: numba.njit(error_model="numpy")(getattr(rule, name)) for name in ARITHMETIC}


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def test_the_list_of_functions_above_is_complete():
    assert set(rule.__all__) - set(ARITHMETIC) == {"initial_samples", "slow_start_factor"}


def arguments_and_results(name):
    """Arguments in columns, some of them 0, and what the function makes of each column as floats."""
    arguments = np.random.default_rng(0).uniform(0.1, 3.0, size=(ARITHMETIC[name], 50))
    arguments[0, :5] = 0.0
    function = getattr(rule, name)
    return arguments, np.array([as_tuple(function(*map(float, column))) for column in arguments.T]).T


@pytest.mark.parametrize("name", ARITHMETIC)
def test_floats_numpy_and_numba_agree(name, compiled):
    arguments, one_by_one = arguments_and_results(name)
    on_numpy = np.array(as_tuple(getattr(rule, name)(*arguments)))
    in_numba = np.array([as_tuple(compiled[name](*column)) for column in arguments.T]).T
    np.testing.assert_allclose(on_numpy, one_by_one, rtol=1e-15)
    # Once pesky.online is imported, its options for compiling the rule let products fuse with sums.
    np.testing.assert_allclose(in_numba, one_by_one, rtol=1e-13)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_floats_and_torch_agree(name):
    torch = pytest.importorskip("torch")
    arguments, one_by_one = arguments_and_results(name)
    on_torch = as_tuple(getattr(rule, name)(*map(torch.tensor, arguments)))
    np.testing.assert_allclose([part.numpy() for part in on_torch], one_by_one, rtol=1e-15)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_float32_in_float32_out(name, compiled):
    count = ARITHMETIC[name]
    expected = np.dtype(bool) if name == "is_finite_power" else np.dtype(np.float32)
    arrays = [np.full(3, 0.5, np.float32)] * count
    assert {part.dtype for part in as_tuple(getattr(rule, name)(*arrays))} == {expected}
    compiled[name](*[np.float32(0.5)] * count)
    (returned,) = {
        signature.return_type
        for signature in compiled[name].nopython_signatures
        if signature.args[:count] == (numba.float32,) * count
    }
    kinds = set(returned.types) if isinstance(returned, numba.types.BaseTuple) else {returned}
    assert kinds == {numba.boolean if name == "is_finite_power" else numba.float32}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_float32_in_float32_out_of_torch(name):
    torch = pytest.importorskip("torch")
    tensors = [torch.full((3,), 0.5)] * ARITHMETIC[name]
    expected = torch.bool if name == "is_finite_power" else torch.float32
    assert {part.dtype for part in as_tuple(getattr(rule, name)(*tensors))} == {expected}


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


def test_curvature_is_measured_exactly_on_a_parabola_and_never_negative():
    slope, bend, scale = 3.0, 0.5, 0.1
    change = -scale * slope + scale * scale / 2 * bend
    assert rule.measured_curvature(change, slope, scale) == pytest.approx(bend)
    assert rule.measured_curvature(-10.0, slope, scale) == 0


def test_the_scale_is_slope_over_curvature_within_its_bound():
    assert rule.next_scale(2.0, 4.0, 1.0) == 0.5
    assert rule.next_scale(2.0, 1.0, 1.5) == 1.5
    assert rule.next_scale(2.0, 0.0, 1.5) == 1.5
    assert rule.next_scale(0.0, 0.0, 1.5) == 0


def test_caution_follows_the_score_and_stays_in_its_bounds():
    assert rule.next_caution(1.0, -1.0, 20.0) == 1
    less = rule.next_caution(1.0, 0.5, 20.0)
    assert less == pytest.approx(math.exp(-2 * 0.5 / 20), rel=1e-4)
    assert rule.next_caution(less, -0.5, 20.0) == pytest.approx(1.0)


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
