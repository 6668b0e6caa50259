"""The arithmetic of the rule and of the robust form is the same on floats, NumPy, torch and Numba."""

import numba
import numpy as np
import pytest
from numba.extending import register_jitable

from pesky import direction, length, rule

# Each function with as many positive arguments as it takes.
COUNTS = {
    rule: {
        "average": 3,
        "larger": 2,
        "noise_ratio": 2,
        "learning_rate": 2,
        "at_least": 2,
        "next_memory": 2,
        "element_update": 6,
        "is_finite_power": 1,
    },
    direction: {
        "follow_gradient": 4,
        "relative_square": 2,
    },
    length: {"measured_curvature": 3, "next_scale": 3, "next_caution": 3},
}
FUNCTIONS = {name: getattr(module, name) for module, counts in COUNTS.items() for name in counts}
ARITHMETIC = {name: count for counts in COUNTS.values() for name, count in counts.items()}


@pytest.fixture(scope="module")
def compiled():
    for function in FUNCTIONS.values():
        register_jitable(error_model="numpy")(function)
    return {name: numba.njit(error_model="numpy")(FUNCTIONS[name]) for name in ARITHMETIC}


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def test_the_list_of_functions_above_is_complete():
    assert set(rule.__all__) - set(COUNTS[rule]) == {"initial_samples", "slow_start_factor"}
    assert set(direction.__all__) == set(COUNTS[direction])


def arguments_and_results(name):
    """Arguments in columns, some of them 0, and what the function makes of each column as floats."""
    arguments = np.random.default_rng(0).uniform(0.1, 3.0, size=(ARITHMETIC[name], 50))
    arguments[0, :5] = 0.0
    function = FUNCTIONS[name]
    return arguments, np.array([as_tuple(function(*map(float, column))) for column in arguments.T]).T


@pytest.mark.parametrize("name", ARITHMETIC)
def test_floats_numpy_and_numba_agree(name, compiled):
    arguments, one_by_one = arguments_and_results(name)
    on_numpy = np.array(as_tuple(FUNCTIONS[name](*arguments)))
    in_numba = np.array([as_tuple(compiled[name](*column)) for column in arguments.T]).T
    np.testing.assert_allclose(on_numpy, one_by_one, rtol=1e-15)
    # Once pesky.online is imported, its options for compiling the rule let products fuse with sums.
    np.testing.assert_allclose(in_numba, one_by_one, rtol=1e-13)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_floats_and_torch_agree(name):
    torch = pytest.importorskip("torch")
    arguments, one_by_one = arguments_and_results(name)
    on_torch = as_tuple(FUNCTIONS[name](*map(torch.tensor, arguments)))
    np.testing.assert_allclose([part.numpy() for part in on_torch], one_by_one, rtol=1e-15)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_float32_in_float32_out(name, compiled):
    count = ARITHMETIC[name]
    expected = np.dtype(bool) if name == "is_finite_power" else np.dtype(np.float32)
    arrays = [np.full(3, 0.5, np.float32)] * count
    assert {part.dtype for part in as_tuple(FUNCTIONS[name](*arrays))} == {expected}
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
    assert {part.dtype for part in as_tuple(FUNCTIONS[name](*tensors))} == {expected}
