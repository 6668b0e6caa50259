"""The robust form of vSGD in the online engine: steps, what is visible, accidents, results."""

import numpy as np
import pytest

from pesky import length
from pesky.errors import InputError
from pesky.lab.benchmarks import BENCHMARKS, method_named
from pesky.online import VSGD, Learner, Network, fit
from pesky.online.learner import samples_of
from tests.online.cases import assert_same_run, learn_one, network_like, separable_data, some_data
from tests.online.reference import flat
from tests.online.twins import twin_of

ROBUST = VSGD(dialect="robust")

NETWORKS = {
    "softmax": Network([9, 4]),
    "softmax with l2": Network([9, 4], l2=0.01),
    "linear": Network([5, 3], loss="squared-error", l2=0.01),
    "hidden layer": Network([7, 5, 3], seed=1),
    "hidden layer with l2": Network([7, 5, 3], l2=0.01, seed=2),
    "autoencoder": Network([6, 4, 6], loss="squared-error", l2=0.001, seed=3),
    "two hidden layers": Network([6, 5, 4, 3], loss="squared-error", seed=4),
}


def number(learner, which):
    return getattr(length.record_of(learner.state.numbers), which)


def assert_finite(learner):
    assert learner.diverged_at is None
    for name, value in learner.state._asdict().items():
        assert value is None or np.all(np.isfinite(value)), name


def assert_near(actual, wanted):
    """Within 0.3 % of the largest entry: the first scale hangs on a difference of losses."""
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=3e-3 * np.abs(wanted).max())


def targets_of(network, X, seed=0):
    """Something that a network can learn in part."""
    rng = np.random.default_rng(seed)
    outputs = X @ rng.normal(size=(network.sizes[0], network.sizes[-1])) / np.abs(X).max()
    outputs += 0.3 * rng.normal(size=outputs.shape)
    return outputs.argmax(axis=1) if network.loss == "cross-entropy" else outputs.astype(np.float32)


# --- Steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_every_step_is_the_twins(network):
    network = network_like(network, seed=11)
    X, _ = some_data(network, 60, seed=3)
    y = targets_of(network, X)
    learner, twin = Learner(network, ROBUST), twin_of(ROBUST, network)
    samples, pairs = samples_of(X, y), list(zip(X, y, strict=True))
    learner.start(samples, np.arange(10))
    twin.begin(pairs[:10])
    for n, (x, target) in enumerate(pairs):
        learner.advance(samples, np.array([n]))
        twin.step(x, target)
        assert_near(learner.state.iterate, twin.model.flat)
        assert_near(learner.state.average, flat(twin.average))
        assert_near(network.theta, twin.visible)
        assert_near(ROBUST.rates(learner.state), twin.rates)
        assert number(learner, "scale") == pytest.approx(twin.scale, rel=3e-3)
        assert number(learner, "caution") == pytest.approx(twin.caution, rel=3e-3)
        assert number(learner, "shortened") == twin.shortened
        assert number(learner, "restored") == learner.rejected == twin.restored
    assert number(learner, "averaged") == twin.moves == 60 - twin.restored
    assert twin.lead.count > 10


def test_a_loss_in_other_units_takes_the_same_steps():
    """Targets and the last layer times 1024: the gradients of squared error are 1024 times as large."""
    ends = []
    for unit in (1.0, 1024.0):
        network = Network([6, 3], loss="squared-error", seed=5)
        network.theta *= np.float32(unit)
        X, y = some_data(network, 100, seed=4)
        learner = learn_one(ROBUST, network, X, y * np.float32(unit))
        ends.append((network.theta / unit, number(learner, "scale")))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-4, atol=1e-5)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-4)


# --- What is visible ------------------------------------------------------------------------------


def test_the_better_of_average_and_iterate_is_visible():
    network = Network([6, 5, 3], seed=1)
    X, _ = some_data(network, 600, seed=5)
    y = targets_of(network, X)
    learner = Learner(network, ROBUST)
    shown = set()
    for n in range(0, 600, 3):
        learner.learn(X[n : n + 3], y[n : n + 3])
        if learner.started:
            is_better = number(learner, "lead") > 0
            place = learner.state.average if is_better else learner.state.iterate
            np.testing.assert_array_equal(network.theta, place)
            shown.add(bool(is_better))
    assert shown == {False, True}


@pytest.mark.parametrize("visible", ["average", "iterate"])
def test_parameters_set_from_outside_become_iterate_and_average(visible):
    network = Network([6, 3], seed=1)
    X, _ = some_data(network, 400, seed=6)
    y = targets_of(network, X)
    learner = Learner(network, ROBUST).learn(X[:100], y[:100])
    n = 100
    while number(learner, "shows_average") != (visible == "average"):
        learner.learn(X[n : n + 1], y[n : n + 1])
        n += 1
    new = np.linspace(-1, 1, network.parameters).astype(np.float32)
    network.set_parameters(new)
    learner.method.enter(learner.state, network.theta)
    np.testing.assert_array_equal(network.theta, new)
    np.testing.assert_array_equal(learner.state.average, new)
    assert number(learner, "averaged") == 0
    learner.method.leave(learner.state, network.theta)
    np.testing.assert_array_equal(network.theta, new)
    learner.learn(X[n : n + 1], y[n : n + 1])
    assert number(learner, "averaged") == 1
    np.testing.assert_array_equal(learner.state.average, new)


def test_a_run_of_single_samples_and_saves_is_the_uninterrupted_run(tmp_path):
    network = Network([5, 4, 3], l2=1e-3)
    X, _ = some_data(network, 300, seed=7)
    y = targets_of(network, X)
    whole = learn_one(ROBUST, network_like(network), X, y)
    pieces = Learner(network_like(network), ROBUST)
    shown = 0
    for n in range(300):
        pieces.learn(X[n : n + 1], y[n : n + 1])
        shown += number(pieces, "shows_average")
        if n % 40 == 17:
            pieces.save(tmp_path / "run.npz")
            pieces = Learner.load(tmp_path / "run.npz")
    assert shown > 1, "the test is about the way back to the iterate"
    assert_same_run(pieces, whole)


def test_rates_are_what_gradients_are_multiplied_with():
    network = Network([6, 3], seed=1)
    X, _ = some_data(network, 50, seed=8)
    y = targets_of(network, X)
    learner = learn_one(ROBUST, network, X, y)
    before = learner.state.iterate.copy()
    twin = twin_of(ROBUST, network)
    twin.model.blocks[:] = [before[:18].reshape(3, 6).astype(np.float64), before[18:].astype(np.float64)]
    gradient = flat(twin.model.gradient(X[0], y[0]))
    learner.learn(X[:1], y[:1])
    step = before - learner.state.iterate
    np.testing.assert_allclose(ROBUST.rates(learner.state) * gradient, step, rtol=1e-3, atol=1e-6)


# --- Accidents ------------------------------------------------------------------------------------


def put_iterate(learner, values):
    """Let a step have led to these parameters, which are visible."""
    learner.state.iterate[:] = learner.network.theta[:] = values
    length.record_of(learner.state.numbers).shows_average = 0


def test_a_loss_that_is_not_finite_undoes_the_last_step_once():
    network = Network([4, 3], loss="squared-error", seed=1)
    X, _ = some_data(network, 120, seed=9)
    y = targets_of(network, X)
    learner = learn_one(ROBUST, network, X[:60], y[:60])
    average, scale = learner.state.average.copy(), number(learner, "scale")
    put_iterate(learner, 3e38)  # whose sums overflow
    learner.learn(np.ones((1, 4)), np.zeros((1, 3)))
    assert learner.rejected == number(learner, "restored") == 1
    np.testing.assert_array_equal(learner.state.iterate, average)
    assert number(learner, "scale") == scale / 2
    put_iterate(learner, 3e38)
    learner.learn(np.ones((1, 4)), np.zeros((1, 3)))
    assert (learner.rejected, number(learner, "restored")) == (2, 1), "there is no last step any more"
    put_iterate(learner, average)
    learner.learn(X[60:], y[60:])
    assert_finite(learner)
    assert learner.rejected == 2


def test_a_sample_whose_loss_is_finite_nowhere_is_no_fault_of_a_step():
    network = Network([4, 3], loss="squared-error", seed=1)
    X, _ = some_data(network, 60, seed=9)
    learner = learn_one(ROBUST, network, X, targets_of(network, X))
    learner.state.average[:4] = [9, 8, 9, 8]  # which overflow below
    put_iterate(learner, learner.state.average)
    iterate, scale = learner.state.iterate.copy(), number(learner, "scale")
    learner.learn(np.full((3, 4), 3e38, np.float32), np.zeros((3, 3)))
    assert (learner.rejected, number(learner, "restored")) == (3, 0)
    np.testing.assert_array_equal(learner.state.iterate, iterate)
    assert number(learner, "scale") == scale


def test_a_step_that_raised_the_loss_of_the_next_sample_grossly_is_undone():
    network = Network([4, 3], seed=1)
    X, _ = some_data(network, 100, seed=9)
    y = targets_of(network, X)
    learner = learn_one(ROBUST, network, X, y)
    average, scale = learner.state.average.copy(), number(learner, "scale")
    put_iterate(learner, learner.state.iterate + np.float32(1000) * np.arange(15)[::-1])
    wrong = np.flatnonzero(network.predict(X) != y)[:2]
    learner.learn(X[wrong[:1]], y[wrong[:1]])
    assert learner.rejected == number(learner, "restored") == 1
    np.testing.assert_array_equal(learner.state.iterate, average)
    assert number(learner, "scale") == scale / 2
    learner.learn(X[wrong[1:]], y[wrong[1:]])
    assert learner.rejected == 1


def test_a_step_that_would_raise_the_loss_grossly_is_shortened():
    network = Network([4, 2], loss="squared-error", seed=1)
    X, _ = some_data(network, 200, seed=10)
    y = targets_of(network, X)
    learner = learn_one(ROBUST, network, X, y)
    before, scale = learner.state.iterate.copy(), number(learner, "scale")
    learner.learn(9 * X[:1], y[:1])  # a curvature that levels know nothing of
    assert number(learner, "shortened") == 1
    assert number(learner, "scale") < scale / 4
    assert np.any(learner.state.iterate != before)
    learner.learn(X, y)
    assert_finite(learner)


@pytest.mark.parametrize("scale", [1e-3, 1e-1, 1e1, 1e3])
@pytest.mark.parametrize("name", ["softmax", "hidden layer with l2", "autoencoder", "two hidden layers"])
def test_inputs_of_any_scale_do_not_diverge(name, scale):
    network = network_like(NETWORKS[name], seed=2)
    X, _ = some_data(network, 300, seed=11)
    X *= np.float32(scale)
    y = targets_of(network, X)
    result = fit(network, ROBUST, X, y, epochs=3)
    assert (result.status, result.rejected < 9) == ("finished", True)  # some steps are undone
    assert_finite(result.learner)
    assert result.loss[-1] < 1.5 * result.loss[0]  # one sample at a time, means over 300 are noisy


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"granularity": "block"}, "granularity.*block"),
        ({"slow_start": 10.0}, "slow_start"),
        ({"init_samples": 0}, "init_samples"),
    ],
)
def test_settings_that_the_dialect_does_not_have_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        VSGD(**settings, dialect="robust")


# With the curvature of Gauss and Newton, saturated units moved ever further here, until all is lost.
@pytest.mark.parametrize("seed", [5, 21, 32])
def test_what_is_learnt_perfectly_stays_so(seed):
    X, y = separable_data(1000, seed)
    network = Network([3, 6, 2], l2=1e-4, seed=seed)
    fit(network, ROBUST, X, y, epochs=10, seed=seed)
    assert network.error(X, y) < 3


# --- Results --------------------------------------------------------------------------------------


def test_on_digits_nothing_is_set_and_the_test_error_is_below_six_percent(fresh_seed):
    benchmark = BENCHMARKS["digits"]
    task, network = benchmark.task(), benchmark.network(fresh_seed)
    method = method_named("vsgd-robust", {}, len(task.train_inputs))
    assert method == ROBUST
    fit(network, method, task.train_inputs, task.train_targets, epochs=6, seed=fresh_seed)
    assert network.error(task.test_inputs, task.test_targets) < 6
