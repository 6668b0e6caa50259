"""Bad input is refused in a sentence that names it; odd input is learnt from without a NaN."""

import json
import signal

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.online import SGD, SMD, VSGD, AdaGrad, Almeida, Amari, Learner, Network, fit
from tests.online.cases import METHODS, network_like, separable_data, some_data

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)

GOOD_X = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
GOOD_Y = [0, 1, 1]

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


# Networks and methods


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sizes": [3, 0]}, "sizes.*0"),
        ({"sizes": [0, 3]}, "sizes.*0"),
        ({"sizes": [3, -1, 2]}, "sizes.*-1"),
        ({"sizes": [3, 2.5]}, "sizes.*2.5"),
        ({"sizes": [3, None]}, "sizes.*None"),
        ({"sizes": [3, True]}, "sizes.*True"),
        ({"sizes": [3]}, r"sizes.*\[3\]"),
        ({"sizes": []}, "sizes"),
        ({"sizes": 3}, "sizes.*3"),
        ({"sizes": "32"}, "sizes.*32"),
        ({"sizes": None}, "sizes.*None"),
        ({"sizes": np.ones((2, 2), int)}, "sizes"),
        ({"activation": "sigmoid"}, "activation.*sigmoid"),
        ({"activation": None}, "activation.*None"),
        ({"activation": ["tanh"]}, "activation.*tanh"),
        ({"loss": "hinge"}, "loss.*hinge"),
        ({"loss": {}}, "loss"),
        ({"l2": -1e-4}, "l2.*-0.0001"),
        ({"l2": np.nan}, "l2.*nan"),
        ({"l2": np.inf}, "l2.*inf"),
        ({"l2": 1e39}, "l2.*1e.39"),
        ({"l2": "0.1"}, "l2.*0.1"),
        ({"seed": -1}, "seed.*-1"),
        ({"seed": 1.5}, "seed.*1.5"),
        ({"seed": None}, "seed.*None"),
    ],
)
def test_bad_networks_are_refused(settings, named):
    with pytest.raises(InputError, match=f"(?s){named}"):
        Network(**{"sizes": [3, 2], **settings})


BAD_METHODS = [
    (VSGD, {"granularity": "layer"}, "granularity.*layer"),
    (VSGD, {"granularity": None}, "granularity.*None"),
    (VSGD, {"dialect": "french"}, "dialect.*french"),
    (VSGD, {"slow_start": 0.5}, "slow_start.*0.5"),
    (VSGD, {"slow_start": np.nan}, "slow_start.*nan"),
    (VSGD, {"slow_start": 1e39}, "slow_start.*1e.39"),
    (VSGD, {"init_samples": 0}, "init_samples.*0"),
    (VSGD, {"init_samples": 2.5}, "init_samples.*2.5"),
    (VSGD, {"curvature_floor": 0}, "curvature_floor.*0"),
    (VSGD, {"curvature_floor": -1.0}, "curvature_floor.*-1"),
    (VSGD, {"curvature_floor": 1e39}, "curvature_floor.*1e.39"),
    (VSGD, {"curvature_every": 0}, "curvature_every.*0"),
    (VSGD, {"curvature_every": 1.5}, "curvature_every.*1.5"),
    (SGD, {"eta0": 0.1, "gamma": -1}, "gamma.*-1"),
    (SGD, {"eta0": 0.1, "gamma": np.inf}, "gamma.*inf"),
    (Amari, {"eta0": 0.1, "tau": 0.9}, "tau.*0.9"),
    (Amari, {"eta0": 0.1, "tau": np.inf}, "tau.*inf"),
    (Amari, {"eta0": 0.1, "tau": 10, "start": "zero"}, "start.*zero"),
    (Almeida, {"eta0": 0.1, "tau": 0.9}, "tau.*0.9"),
    (Almeida, {"eta0": 0.1, "tau": 10, "start": None}, "start.*None"),
    (Almeida, {"eta0": 0.1, "tau": 10, "reading": "aloud"}, "reading.*aloud"),
    (Almeida, {"eta0": 0.1, "tau": 10, "reading": ["product"]}, "reading.*product"),
    (SMD, {"eta0": 0.1, "mu": -0.1, "tau": 10}, "mu.*-0.1"),
    (SMD, {"eta0": 0.1, "mu": 0.1, "tau": 0}, "tau.*0"),
]
for method in (SGD, AdaGrad, Amari, Almeida, SMD):
    other = {AdaGrad: {}, SGD: {}, SMD: {"mu": 0.1, "tau": 10}}.get(method, {"tau": 10})
    for eta0 in (0, -0.1, np.nan, np.inf, "0.1", None, True, 1e39):
        BAD_METHODS.append((method, {"eta0": eta0, **other}, "eta0"))


@pytest.mark.parametrize(
    ("method", "settings", "named"), BAD_METHODS, ids=[f"{m.__name__} {s}" for m, s, _ in BAD_METHODS]
)
def test_bad_settings_of_methods_are_refused(method, settings, named):
    with pytest.raises(InputError, match=f"(?s){named}"):
        method(**settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epochs": 0}, "epochs.*0"),
        ({"epochs": 1.5}, "epochs.*1.5"),
        ({"epochs": None}, "epochs.*None"),
        ({"seed": -1}, "seed.*-1"),
        ({"every": 0}, "every.*0"),
        ({"every": -3}, "every.*-3"),
        ({"network": [3, 2]}, r"network.*\[3, 2\]"),
        ({"method": "vsgd"}, "method.*vsgd"),
        ({"method": VSGD}, "method"),
        ({"method": None}, "method.*None"),
    ],
)
def test_bad_arguments_of_fit_are_refused(settings, named):
    arguments = {"network": Network([3, 2]), "method": SGD(0.1), "X": GOOD_X, "y": GOOD_Y}
    with pytest.raises(InputError, match=f"(?s){named}"):
        fit(**{**arguments, **settings})


def test_probabilities_are_for_classes_only():
    with pytest.raises(InputError, match=r"predict_proba.*squared-error"):
        Network([3, 2], loss="squared-error").predict_proba(GOOD_X)


def test_predictions_have_one_row_a_sample():
    network = Network([3, 4, 2])
    X, _ = some_data(network, 5000, seed=1)
    assert network.outputs(X).shape == network.predict_proba(X).shape == (5000, 2)
    assert network.predict(X).shape == (5000,)
    assert set(network.predict(X)) <= {0, 1}
    np.testing.assert_allclose(network.predict_proba(X).sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(network.predict(X), network.predict_proba(X).argmax(axis=1))
    np.testing.assert_allclose(network.outputs(X)[4990:], network.outputs(X[4990:]), rtol=1e-5)
    regression = Network([3, 2], loss="squared-error")
    np.testing.assert_array_equal(regression.predict(X), regression.outputs(X))


# Files


def test_a_network_survives_its_file(tmp_path):
    network = Network([3, 4, 2], activation="relu", loss="squared-error", l2=0.01, seed=5)
    network.theta[:] = np.random.default_rng(1).normal(size=network.parameters)
    network.save(tmp_path / "network.npz")
    loaded = Network.load(tmp_path / "network.npz")
    assert loaded.settings() == network.settings()
    np.testing.assert_array_equal(loaded.theta, network.theta)
    np.testing.assert_array_equal(loaded.predict(GOOD_X), network.predict(GOOD_X))
    network.save(str(tmp_path / "network.npz"))
    assert [file.name for file in tmp_path.iterdir()] == ["network.npz"]


def test_a_name_without_suffix_is_the_name_of_the_file(tmp_path):
    Network([3, 2]).save(tmp_path / "network")
    assert Network.load(tmp_path / "network").sizes == (3, 2)


def saved(path, kind):
    """A good file of either kind, and the function that reads it."""
    if kind == "network":
        Network([3, 2]).save(path)
        return Network.load
    Learner(Network([3, 2]), VSGD()).learn(GOOD_X * 4, GOOD_Y * 4).save(path)
    return Learner.load


def changed(path, **arrays):
    with np.load(path) as archive:
        content = dict(archive)
    for name, value in arrays.items():
        content.pop(name.replace("__", "."))
        if value is not None:
            content[name.replace("__", ".")] = value
    write(path, np.savez, **content)


def write(path, save, *arrays, **named):
    with path.open("wb") as stream:
        save(stream, *arrays, **named)


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "text": lambda path: path.write_text("no archive"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a single array": lambda path: write(path, np.save, np.zeros(3)),
    "a pickle": lambda path: write(path, np.save, np.array([None])),
    "another archive": lambda path: write(path, np.savez, a=np.zeros(3)),
    "no parameters": lambda path: changed(path, theta=None),
    "parameters of another shape": lambda path: changed(path, theta=np.zeros(3, np.float32)),
    "text for parameters": lambda path: changed(path, theta=np.array(["a"] * 8)),
    "NaN for parameters": lambda path: changed(path, theta=np.full(8, np.nan, np.float32)),
}


@pytest.mark.parametrize("kind", ["network", "learner"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_by_name(damage, kind, tmp_path):
    path = tmp_path / "file.npz"
    load = saved(path, kind)
    damage(path)
    with pytest.raises(InputError, match=r"file\.npz|theta"):
        load(path)


@pytest.mark.parametrize("kind", ["network", "learner"])
def test_a_flipped_byte_is_noticed_or_harmless(kind, tmp_path):
    path = tmp_path / "file.npz"
    load = saved(path, kind)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 0xFF
        path.write_bytes(content)
        try:
            loaded = load(path)
        except InputError as error:
            assert "file.npz" in str(error) or "theta" in str(error)  # noqa: PT017
        else:
            network = loaded if kind == "network" else loaded.network
            assert np.all(np.isfinite(network.theta)), place


@pytest.mark.parametrize("content", ["", "no json", "3", "{}", '{"sizes": [3, 2], "colour": 1}', "[]"])
@pytest.mark.parametrize("kind", ["network", "learner"])
def test_strange_settings_in_a_file_are_refused(content, kind, tmp_path):
    path = tmp_path / "file.npz"
    load = saved(path, kind)
    changed(path, **{kind: np.array(content)})
    with pytest.raises(InputError):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"state__mean_square": None},
        {"state__mean_square": np.zeros(3, np.float32)},
        {"trace__step": None},
        {"trace__rate": np.zeros(3)},
    ],
    ids=str,
)
def test_a_checkpoint_that_lacks_something_is_refused(change, tmp_path):
    path = tmp_path / "file.npz"
    saved(path, "learner")
    changed(path, **change)
    with pytest.raises(InputError, match=r"file\.npz"):
        Learner.load(path)


@pytest.mark.parametrize(
    "change",
    [{"format": 999}, {"method": {"class": "Sorcery"}}, {"method": {"class": "Method"}}],
    ids=str,
)
def test_a_checkpoint_of_another_version_is_refused(change, tmp_path):
    path = tmp_path / "file.npz"
    saved(path, "learner")
    with np.load(path) as archive:
        counters = json.loads(str(archive["learner"]))
    changed(path, learner=np.array(json.dumps(counters | change)))
    with pytest.raises(InputError, match=r"file\.npz"):
        Learner.load(path)


def test_files_of_one_kind_are_not_taken_for_the_other(tmp_path):
    saved(tmp_path / "network.npz", "network")
    saved(tmp_path / "learner.npz", "learner")
    with pytest.raises(InputError, match=r"learner\.npz"):
        Network.load(tmp_path / "learner.npz")
    with pytest.raises(InputError, match=r"network\.npz"):
        Learner.load(tmp_path / "network.npz")


OTHER_RUNS = {
    "seed": {"seed": 2},
    "data": {"X": [[9.0, 9.0, 9.0], *GOOD_X[1:]]},
    "labels": {"y": [1, 1, 1]},
    "fewer data": {"X": GOOD_X[:2], "y": GOOD_Y[:2]},
    "method": {"method": VSGD()},
    "settings": {"method": SGD(0.2)},
    "layers": {"network": Network([3, 4, 2])},
    "l2": {"network": Network([3, 2], l2=0.1)},
    "activation": {"network": Network([3, 2], activation="relu")},
}


@pytest.mark.parametrize("change", OTHER_RUNS.values(), ids=OTHER_RUNS)
def test_the_checkpoint_of_another_run_is_refused_and_kept(change, tmp_path):
    path = tmp_path / "run.npz"
    run = {"method": SGD(0.1), "X": GOOD_X, "y": GOOD_Y, "seed": 1, "checkpoint": path}
    fit(Network([3, 2]), **run)
    content = path.read_bytes()
    other = {"network": Network([3, 2]), **run, **change}
    before = other["network"].theta.copy()
    with pytest.raises(InputError, match=r"checkpoint.*run\.npz"):
        fit(**other)
    assert path.read_bytes() == content
    np.testing.assert_array_equal(other["network"].theta, before)


def test_a_stream_is_no_checkpoint_of_fit(tmp_path):
    saved(tmp_path / "stream.npz", "learner")
    with pytest.raises(InputError, match=r"stream\.npz"):
        fit(Network([3, 2]), VSGD(), GOOD_X, GOOD_Y, checkpoint=tmp_path / "stream.npz")


def test_a_checkpoint_in_a_missing_folder_is_refused_before_any_training(tmp_path):
    network = Network([3, 2])
    before = network.theta.copy()
    with pytest.raises(InputError, match="nowhere"):
        fit(network, SGD(0.1), GOOD_X, GOOD_Y, checkpoint=tmp_path / "nowhere" / "run.npz")
    np.testing.assert_array_equal(network.theta, before)


@pytest.mark.parametrize(
    "method",
    [
        SGD(np.float32(0.1)),
        SGD(np.float64(0.1), gamma=np.int64(1)),
        VSGD(init_samples=np.int64(3), slow_start=np.float32(2)),
        VSGD(curvature_every=np.int32(2), curvature_floor=np.float32(0.1)),
        AdaGrad(1),
    ],
    ids=str,
)
def test_settings_may_be_numpy_numbers_and_survive_a_file(method, tmp_path):
    path = tmp_path / "run.npz"
    whole = fit(Network([3, 2]), method, GOOD_X, GOOD_Y, epochs=2)
    fit(Network([3, 2]), method, GOOD_X, GOOD_Y, epochs=1, checkpoint=path)
    rest = fit(Network([3, 2]), method, GOOD_X, GOOD_Y, epochs=2, checkpoint=path)
    np.testing.assert_array_equal(rest.learner.network.theta, whole.learner.network.theta)


# Progress and callbacks


def test_progress_without_a_terminal_changes_nothing_and_prints_no_control_codes(capfd):
    X, y = separable_data(200, seed=5)
    quiet = fit(Network([3, 2]), SGD(0.1), X, y, epochs=3)
    capfd.readouterr()
    shown = fit(Network([3, 2]), SGD(0.1), X, y, epochs=3, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "\x1b" not in err
    np.testing.assert_array_equal(shown.learner.network.theta, quiet.learner.network.theta)


def test_an_error_in_a_callback_comes_through_and_ctrl_c_works_as_before():
    def fail(moment):
        raise ZeroDivisionError

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError):
        fit(Network([3, 2]), SGD(0.1), GOOD_X, GOOD_Y, callback=fail)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_ctrl_c_raises():
    def interrupt(moment):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    network = Network([3, 2])
    with pytest.raises(KeyboardInterrupt):
        fit(network, SGD(0.1), GOOD_X, GOOD_Y, callback=interrupt)
    assert np.all(np.isfinite(network.theta))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
