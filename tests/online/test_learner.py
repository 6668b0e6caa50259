"""Bad data are refused in a sentence that names them; odd data are learnt from without a NaN."""

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.online import SGD, VSGD, Learner, Network, fit
from tests.online.cases import GOOD_X, every_method, network_like, separable_data, some_data

BAD_X = {
    "NaN": ([[0, 1, 2], [np.nan, 4, 5]], "row 1"),
    "infinity": ([[0, np.inf, 2], [3, 4, 5]], "row 0"),
    "beyond float32": ([[0, 1, 1e39], [3, 4, 5]], "row 0"),
    "one column too few": ([[0, 1], [3, 4]], r"\(2, 2\)"),
    "one dimension": ([0, 1, 2], r"\(3,\)"),
    "three dimensions": (np.zeros((2, 3, 1)), r"\(2, 3, 1\)"),
    "a scalar": (1.0, "shape"),
    "strings": ([["a", "b", "c"]], "'a'"),
    "numbers as strings": ([["1", "2", "3"]], "'1'"),
    "objects": (np.array([[None, 1, 2]]), "None"),
    "complex": ([[1j, 2, 3]], "1j"),
    "ragged": ([[1, 2, 3], [1, 2]], r"\[1, 2\]"),
    "dates": (np.array([["2020-01-01"] * 3], "M8[D]"), "2020"),
    "None": (None, "None"),
}


BAD_LABELS = {
    "too large": ([0, 2, 1], "2"),
    "negative": ([0, -1, 1], "-1"),
    "fractions": ([0, 0.5, 1], "0.5"),
    "NaN": ([0, np.nan, 1], "nan"),
    "infinity": ([0, np.inf, 1], "inf"),
    "too few": ([0, 1], "2"),
    "too many": ([0, 1, 0, 1], "4"),
    "none": (None, "missing"),
    "a matrix": ([[0], [1], [1]], r"\(3, 1\)"),
    "a scalar": (1, r"\(\)"),
    "strings": (["a", "b", "c"], "'a'"),
    "objects": ([0, None, 1], "None"),
    "complex": ([0, 1j, 1], "1j"),
    "ragged": ([[0], [1, 2], [1]], r"\[1, 2\]"),
}


BAD_TARGETS = {
    "NaN": ([[0, 1], [np.nan, 2], [1, 1]], "row 1"),
    "infinity": ([[0, 1], [0, 2], [1, -np.inf]], "row 2"),
    "flat for two outputs": ([0, 1, 2], r"\(3, 1\)|\(3,\)"),
    "one column too many": (np.zeros((3, 3)), r"\(3, 3\)"),
    "too few": ([[0, 1], [1, 2]], "2"),
    "none, and no autoencoder": (None, "missing"),
    "strings": ([["a", "b"]] * 3, "'a'"),
    "complex": ([[1j, 0]] * 3, "j"),
    "ragged": ([[0, 1], [1], [1, 1]], r"\[1\]"),
    "a scalar": (3.0, "shape"),
}


def by_name(cases):
    return pytest.mark.parametrize(("given", "shown"), cases.values(), ids=cases)


def parametrised_use():
    uses = {
        "fit": lambda network, X, y: fit(network, SGD(0.1), X, y),
        "learn": lambda network, X, y: Learner(network, SGD(0.1)).learn(X, y),
        "error": lambda network, X, y: network.error(X, y),
    }
    return pytest.mark.parametrize("use", uses.values(), ids=uses)


@by_name(BAD_X)
@parametrised_use()
def test_bad_inputs_are_refused(use, given, shown):
    network = Network([3, 2])
    before = network.theta.copy()
    labels = [0] * (len(given) if hasattr(given, "__len__") else 1)
    with pytest.raises(InputError, match=rf"(?s)^X .*{shown}"):
        use(network, given, labels)
    np.testing.assert_array_equal(network.theta, before)


@by_name(BAD_X)
@pytest.mark.parametrize("ask", ["predict", "predict_proba", "outputs"])
def test_bad_inputs_are_refused_in_predictions_too(ask, given, shown):
    with pytest.raises(InputError, match=rf"(?s)^X .*{shown}"):
        getattr(Network([3, 2]), ask)(given)


@by_name(BAD_LABELS)
@parametrised_use()
def test_bad_labels_are_refused(use, given, shown):
    with pytest.raises(InputError, match=rf"(?s)^y .*{shown}"):
        use(Network([3, 2]), GOOD_X, given)


@by_name(BAD_TARGETS)
@parametrised_use()
def test_bad_targets_are_refused(use, given, shown):
    with pytest.raises(InputError, match=rf"(?s)^y .*{shown}"):
        use(Network([3, 2], loss="squared-error"), GOOD_X, given)


@pytest.mark.parametrize("X", [np.zeros((0, 3)), np.zeros((0, 3), np.int64)])
def test_empty_data_are_refused_by_fit_and_make_empty_predictions(X):
    network = Network([3, 2])
    with pytest.raises(InputError, match="X has no samples"):
        fit(network, SGD(0.1), X, [])
    assert network.predict(X).shape == (0,)
    assert network.predict_proba(X).shape == (0, 2)
    assert Network([3, 2], loss="squared-error").predict(X).shape == (0, 2)
    assert Learner(network, SGD(0.1)).learn(X, np.zeros(0, int)).steps == 0


def test_the_error_on_no_samples_is_refused():
    with pytest.raises(InputError, match="X"):
        Network([3, 2]).error(np.zeros((0, 3)), np.zeros(0, int))


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, bool]
)
@pytest.mark.parametrize("label_dtype", [np.int8, np.int64, np.uint8, np.uint64, bool, np.float32])
def test_numbers_of_any_type_count_the_same(dtype, label_dtype):
    X, y = np.array([[0, 1, 1], [1, 0, 1], [0, 0, 1]]), np.array([0, 1, 1])
    wanted = fit(Network([3, 2]), SGD(0.1), X, y, epochs=5).learner.network.theta
    network = Network([3, 2])
    fit(network, SGD(0.1), X.astype(dtype), y.astype(label_dtype), epochs=5)
    np.testing.assert_array_equal(network.theta, wanted)


def test_the_layout_of_arrays_makes_no_difference_and_they_are_not_changed():
    X, y = separable_data(50, seed=1)
    X = X.astype(np.float32)
    wanted = fit(Network([3, 2]), VSGD(), X, y).learner.network.theta
    padded = np.zeros((100, 6), np.float32)
    padded[::2, ::2] = X
    read_only = X.copy()
    read_only.flags.writeable = False
    for given in (np.asfortranarray(X), padded[::2, ::2], read_only, X.tolist(), X.astype(">f4")):
        before = np.array(given)
        network = Network([3, 2])
        fit(network, VSGD(), given, y)
        np.testing.assert_array_equal(network.theta, wanted)
        np.testing.assert_array_equal(np.array(given), before)


def test_read_only_and_other_layouts_share_one_compiled_kernel():
    """A second compilation for a read-only array would be a pause of seconds."""
    from pesky.online.kernels import train

    X, y = separable_data(50, seed=1)
    X = X.astype(np.float32)
    fit(Network([3, 2]), SGD(0.1), X, y)
    compiled = len(train.signatures)
    X.flags.writeable = False
    y.flags.writeable = False
    fit(Network([3, 2]), SGD(0.1), X, y)
    fit(Network([3, 2]), SGD(0.1), np.asfortranarray(X), y[::-1])
    assert len(train.signatures) == compiled


# Odd data that are no mistake: everything stays finite.
ODD = {
    "one sample": (np.array([[1.0, -2.0, 0.5]]), np.array([1])),
    "constant inputs": (np.ones((50, 3)), np.arange(50) % 2),
    "all zeros": (np.zeros((50, 3)), np.arange(50) % 2),
    "a dead input": (separable_data(50, 1)[0] * [1, 1, 0], separable_data(50, 1)[1]),
    "an input that wakes up late": (
        np.vstack([np.zeros((40, 3)), np.ones((10, 3))]) * [1, 1, 1],
        np.arange(50) % 2,
    ),
    "one class only": (separable_data(50, 1)[0], np.zeros(50, int)),
    "repeated samples": (np.tile([[1.0, 2.0, 3.0]], (50, 1)), np.ones(50, int)),
}


@every_method
@pytest.mark.parametrize(("X", "y"), ODD.values(), ids=ODD)
@pytest.mark.parametrize("l2", [0.0, 1e-4])
@pytest.mark.parametrize("sizes", [[3, 2], [3, 4, 2]])
def test_odd_data_leave_everything_finite(method, X, y, l2, sizes):
    for loss, targets in (("cross-entropy", y), ("squared-error", np.eye(2)[y])):
        network = Network(sizes, l2=l2, loss=loss)
        result = fit(network, method, X, targets, epochs=20)
        assert result.status in ("finished", "diverged")
        assert_finite(result)
        assert np.isfinite(network.error(X, targets))
        stream = Learner(Network(sizes, l2=l2, loss=loss), method).learn(X, targets)
        assert np.all(np.isfinite(stream.network.theta))


def assert_finite(result):
    assert np.all(np.isfinite(result.learner.network.theta))
    for name, value in result.learner.state._asdict().items():
        assert value is None or np.all(np.isfinite(value)), name
    assert np.all(np.isfinite(result.trace["rate"]))
    assert np.all(result.trace["rate"] >= 0)
    assert np.all(np.isfinite(result.trace["loss"]))
    assert np.all(np.isfinite(result.loss))


@every_method
def test_a_dead_input_moves_no_weight_and_keeps_rate_zero(method):
    X, y = separable_data(100, seed=3)
    X[:, 1] = 0
    network = Network([3, 2])
    before = network.layers()[0][0][:, 1].copy()
    result = fit(network, method, X, y, epochs=3)
    np.testing.assert_array_equal(network.layers()[0][0][:, 1], before)
    assert_finite(result)


@every_method
@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
def test_one_output_is_allowed(method, loss):
    X, y = separable_data(100, seed=4)
    targets = np.zeros(100, int) if loss == "cross-entropy" else 2.0 * y - 1
    network = Network([3, 1], loss=loss, l2=1e-4)
    result = fit(network, method, X, targets, epochs=3)
    assert result.status == "finished"
    assert_finite(result)
    if loss == "cross-entropy":
        assert network.predict_proba(X).tolist() == [[1.0]] * 100
        assert network.error(X, targets) == 0
        assert result.loss[-1] == 0
    else:
        assert np.all((network.predict(X[:, :]) > 0).shape == (100, 1))


def test_a_bad_piece_leaves_a_stream_as_it_was():
    network = Network([3, 2])
    X, y = some_data(network, 40, seed=6)
    whole = Learner(network_like(network), VSGD()).learn(X, y)
    learner = Learner(network_like(network), VSGD())
    for start in range(0, 40, 4):
        with pytest.raises(InputError):
            learner.learn(X[:3], [0, 1, 2])
        with pytest.raises(InputError):
            learner.learn(X[:3] * np.nan, [0, 1, 1])
        learner.learn(X[start : start + 4], y[start : start + 4])
    np.testing.assert_array_equal(learner.network.theta, whole.network.theta)
    assert learner.steps == 40
