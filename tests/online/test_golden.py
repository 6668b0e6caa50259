"""Golden trajectories: a race keeps rows by NUMERICS_VERSION, so it must tell results apart."""

from fractions import Fraction

import numpy as np
import pytest

from pesky.lab.benchmarks import METHODS, method_named
from pesky.online import NUMERICS_VERSION, Network, fit

# As the race makes them; the factor of the slow start keeps vSGD-l stable on a network so small.
SETTINGS = {
    "vsgd-l": {},
    "vsgd-b": {},
    "vsgd-g": {},
    "vsgd-robust": {},
    "sgd": {"eta0": "1e-1", "gamma": "1/3"},
    "adagrad": {"eta0": "1e-1"},
    "smd": {"eta0": "1e-1", "mu": "1e-1", "tau": "1e1"},
    "amari": {"eta0": "1e-2", "tau": "1e1"},
    "almeida": {"eta0": "1e-1", "tau": "1e1"},
}
# Without a floor the robust form's first scale, and all that follows, hangs on the last bits of a slope.
OPTIONS = {"vsgd-l": {"slow_start": 1000.0}, "vsgd-robust": {"curvature_floor": 0.5}}
NETWORKS = {"classifier": ([6, 5, 3], "cross-entropy"), "autoencoder": ([6, 4, 6], "squared-error")}
SAMPLES, EPOCHS = 25, 2

# Loss over the second epoch, and norm of the parameters after 50 steps.
GOLDEN = {
    1: {
        ("classifier", "vsgd-l"): (1.1387292, 5.2476864),
        ("classifier", "vsgd-b"): (0.60127522, 6.7229755),
        ("classifier", "vsgd-g"): (0.69582126, 3.3028874),
        ("classifier", "vsgd-robust"): (0.63274467, 4.6624540),
        ("classifier", "sgd"): (0.86799744, 2.8357949),
        ("classifier", "adagrad"): (0.7875964, 2.9290404),
        ("classifier", "smd"): (0.86496333, 2.8714133),
        ("classifier", "amari"): (1.0966421, 2.7816736),
        ("classifier", "almeida"): (1.2331626, 2.8772733),
        ("autoencoder", "vsgd-l"): (1.0299894, 3.870686),
        ("autoencoder", "vsgd-b"): (0.63314191, 3.2676514),
        ("autoencoder", "vsgd-g"): (0.77784423, 3.0878144),
        ("autoencoder", "vsgd-robust"): (0.66123915, 3.6284667),
        ("autoencoder", "sgd"): (0.74683548, 3.2128888),
        ("autoencoder", "adagrad"): (0.73562973, 3.2485074),
        ("autoencoder", "smd"): (0.71653932, 3.3620479),
        ("autoencoder", "amari"): (1.0783888, 3.3132887),
        ("autoencoder", "almeida"): (1.4827427, 2.7760244),
    }
}


def trajectory(name, method, nudge=0.0, **settings):
    """50 steps on waves; `nudge` moves the start by so much, relatively."""
    sizes, loss = NETWORKS[name]
    inputs = np.sin(np.arange(1, SAMPLES * 6 + 1) ** 1.5).reshape(SAMPLES, 6).astype(np.float32)
    labels = None if loss == "squared-error" else inputs[:, :3].argmax(axis=1)
    network = Network(sizes, loss=loss, l2=1e-4, seed=1)
    signs = np.random.default_rng(3).choice([-1, 1], size=network.theta.size)
    network.theta *= (1 + nudge * signs).astype(np.float32)
    chosen = method_named(method, SETTINGS[method] | settings, SAMPLES, **OPTIONS.get(method, {}))
    result = fit(network, chosen, inputs, labels, epochs=EPOCHS, seed=2)
    assert (result.status, result.steps, result.rejected) == ("finished", 50, 0)
    return result.loss[-1], float(np.linalg.norm(network.theta.astype(np.float64)))


def test_every_method_is_guarded():
    assert set(SETTINGS) == set(METHODS)
    assert NUMERICS_VERSION in GOLDEN, (
        f"NUMERICS_VERSION is {NUMERICS_VERSION}: put its numbers, those of `trajectory`, into GOLDEN"
    )
    assert set(GOLDEN[NUMERICS_VERSION]) == {(name, method) for name in NETWORKS for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_results_change_with_the_numerics_version_only(name, method):
    found, expected = trajectory(name, method), GOLDEN[NUMERICS_VERSION][name, method]
    assert found == pytest.approx(expected, rel=1e-4), (
        f"{method} gives other numbers on the {name} than numerics version {NUMERICS_VERSION} did. If "
        "that is meant, raise pesky.online.NUMERICS_VERSION (for vsgd-robust alone: the number in "
        "ROBUST_PROTOCOL of pesky/lab/race/contest.py), so that no race takes old rows for new "
        "ones, and put the new numbers into GOLDEN; else mend what changed them."
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_golden_number_hangs_on_the_last_bit(name, method):
    # Processors round differently; a start that is off by some bits must stay within the tolerance.
    assert trajectory(name, method, nudge=3e-7) == pytest.approx(trajectory(name, method), rel=1e-5)


@pytest.mark.parametrize(
    ("method", "setting"), [(method, setting) for method in METHODS for setting in SETTINGS[method]]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_golden_numbers_tell_a_small_change(name, method, setting):
    changed = str(Fraction(SETTINGS[method][setting]) * Fraction(11, 10))
    found = trajectory(name, method, **{setting: changed})
    assert found != pytest.approx(trajectory(name, method), rel=2e-4)
