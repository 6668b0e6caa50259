"""What `fit` refuses, whose checkpoint it takes, and what callbacks and Ctrl-C do to it."""

import signal

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.online import SGD, VSGD, Network, fit
from tests.online.cases import GOOD_X, GOOD_Y, separable_data


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


def test_a_checkpoint_in_a_missing_folder_is_refused_before_any_training(tmp_path):
    network = Network([3, 2])
    before = network.theta.copy()
    with pytest.raises(InputError, match="nowhere"):
        fit(network, SGD(0.1), GOOD_X, GOOD_Y, checkpoint=tmp_path / "nowhere" / "run.npz")
    np.testing.assert_array_equal(network.theta, before)


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
