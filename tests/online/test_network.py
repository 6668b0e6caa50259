"""Networks: what they refuse, what they predict, and the file they survive."""

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.online import Network
from tests.online.cases import GOOD_X, some_data


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
