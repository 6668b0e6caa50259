"""Levels of the robust form in the online engine: what is measured, when, and the direction from it."""

from itertools import pairwise

import numpy as np
import pytest

from pesky import length
from pesky.online import VSGD, Learner, Network
from pesky.online.learner import samples_of
from pesky.online.methods.robust_levels import MEASURED, MOVES, fill_signs
from tests.online.cases import learn_one, network_like, some_data
from tests.online.reference import Model, flat
from tests.online.robust_twin import like, random_signs

ROBUST = VSGD(dialect="robust")
NETWORKS = {
    f"{sizes} {activation} {loss} l2={l2}": Network(sizes, activation=activation, loss=loss, l2=l2)
    for sizes in ([7, 5, 3], [3, 1, 4, 2], [17, 2], [4, 9, 8, 3])
    for activation in ("tanh", "relu", "identity")
    for loss in ("cross-entropy", "squared-error")
    for l2 in (0.0, 0.03)
    if len(sizes) > 2 or activation == "tanh"
}
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


# --- Signs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**53])
def test_signs_are_those_of_splitmix(seed):
    signs = np.zeros(200, np.float32)
    fill_signs(signs, seed)
    np.testing.assert_array_equal(signs, random_signs(200, seed))


def test_signs_of_places_and_of_seeds_have_nothing_to_do_with_each_other():
    """Sums of n products of independent signs are within 6 sqrt(n); these never change."""
    size, seeds = 4096, range(40)
    drawn = np.zeros((len(seeds), size), np.float32)
    for seed in seeds:
        fill_signs(drawn[seed], seed)
    assert set(np.unique(drawn)) == {-1, 1}
    products = drawn @ drawn.T
    np.testing.assert_array_equal(np.diag(products), size)
    assert np.abs(products - np.diag(np.diag(products))).max() < 6 * np.sqrt(size)
    assert np.abs(drawn.sum(axis=1)).max() < 6 * np.sqrt(size)
    assert np.abs((drawn[:, 1:] * drawn[:, :-1]).sum(axis=1)).max() < 6 * np.sqrt(size)


# --- What is measured -----------------------------------------------------------------------------


def product_by_differences(model, x, target, signs):
    """Product of the Hessian with the signs, from gradients on either side, L2 included."""
    z, distance = like(model.blocks, signs), 1e-6
    ahead, behind = (
        model.gradient(x, target, [b + way * part for b, part in zip(model.blocks, z, strict=True)])
        for way in (distance, -distance)
    )
    return [(a - b) / (2 * distance) for a, b in zip(ahead, behind, strict=True)]


@every_network
def test_levels_are_root_mean_squares_of_differences_of_gradients(network):
    """Squared, they are averaged over the initial samples."""
    network = network_like(network, seed=5)
    rng = np.random.default_rng(6)
    network.theta[:] = rng.normal(scale=0.5, size=network.parameters)  # biases, too
    X, y = some_data(network, 4, seed=7)
    model, squares = Model(network), []
    for seed, (x, target) in enumerate(zip(X, y, strict=True)):
        product = product_by_differences(model, x, target, random_signs(network.parameters, seed))
        squares.append([np.mean(Hz**2) for Hz in product])
    learner = Learner(network, VSGD(dialect="robust", init_samples=4))
    learner.start(samples_of(X, y), np.arange(4))
    wanted = np.mean(squares, axis=0)
    np.testing.assert_allclose(learner.state.level_square, wanted, rtol=1e-4, atol=1e-7 * wanted.max())
    assert wanted.max() > 0


def test_a_level_looks_back_five_measurements():
    """Inputs of 0 leave the weights' product at 0, and their level shrinks by 4/5 each time."""
    network = Network([3, 2], loss="squared-error", seed=1)
    X, y = some_data(network, 30, seed=2)
    learner = learn_one(ROBUST, network, X, y)
    for _ in range(3):
        before = learner.state.level_square[0]
        learner.learn(np.zeros((1, 3)), np.zeros((1, 2)))
        assert learner.state.level_square[0] == pytest.approx(0.8 * before, rel=1e-3)


def test_a_product_that_is_not_finite_leaves_the_levels_and_is_measured_again():
    """Weights of 1e-30 and 1e30 in a row: with the first one changed by 1, the output overflows."""
    network = Network([1, 1, 1], activation="identity", loss="squared-error", seed=1)
    X, y = some_data(network, 30, seed=3)
    learner = learn_one(ROBUST, network, X, y)
    squares, measured = learner.state.level_square.copy(), learner.state.counts[MEASURED]
    good = network.theta.copy()
    network.set_parameters(np.array([1e-30, 0, 1e30, 0], np.float32))
    extreme = np.array([[1e10]], np.float32)
    learner.learn(extreme, network.outputs(extreme))
    assert learner.rejected == 0
    np.testing.assert_array_equal(learner.state.level_square, squares)
    assert learner.state.counts[MEASURED] == measured
    network.set_parameters(good)
    learner.learn(X[:1], y[:1])
    assert learner.state.counts[MEASURED] > measured
    assert np.all(learner.state.level_square != squares)
    assert np.all(np.isfinite(learner.state.level_square))


# --- When -----------------------------------------------------------------------------------------


def measured_moves(method, samples):
    """Return before which moves levels were measured, in a run without accidents."""
    network = Network([4, 2], loss="squared-error", seed=1)
    rng = np.random.default_rng(8)
    X = rng.normal(size=(samples, 4)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)  # all samples are equally curved
    y = (X @ rng.normal(size=(4, 2)) + 0.01 * rng.normal(size=(samples, 2))).astype(np.float32)
    learner = Learner(network, method)
    learner.start(samples_of(X, y), np.arange(10))
    assert learner.state.counts[MEASURED] < 0, "initial samples are no moves"
    noted = []
    for n in range(samples):
        learner.advance(samples_of(X, y), np.array([n]))
        noted.append(learner.state.counts[MEASURED])
    known = length.record_of(learner.state.numbers)
    assert (known.shortened, known.restored, learner.rejected) == (0, 0, 0)
    assert learner.state.counts[MOVES] == samples
    return [int(one) for one in sorted(set(noted))]


def test_levels_are_measured_at_first_and_then_whenever_five_percent_of_the_moves_have_gone_by():
    moves = measured_moves(ROBUST, 1000)
    assert moves[:40] == list(range(40))
    for one, after in pairwise(moves[40:]):
        assert after - one == max(1, int(0.05 * after))
    assert moves[-1] > 900
    assert len(moves) < 120


def test_levels_are_measured_at_least_as_often_as_asked_for():
    assert measured_moves(VSGD(dialect="robust", curvature_every=1), 200) == list(range(200))
    moves = measured_moves(VSGD(dialect="robust", curvature_every=3), 300)
    assert moves[:41] == [*range(40), 41]
    assert set(np.diff(moves[-60:])) == {3}


@pytest.mark.parametrize("accident", ["shortened", "restored"])
def test_levels_are_measured_after_an_accident(accident):
    network = Network([4, 2], loss="squared-error", seed=1)
    X, y = some_data(network, 300, seed=9)
    learner = learn_one(ROBUST, network, X, y)
    while learner.state.counts[MEASURED] < learner.state.counts[MOVES] - 1:
        learner.learn(X[:1], y[:1])
    before = learner.state.counts[MEASURED]
    learner.learn(X[1:2], y[1:2])
    assert learner.state.counts[MEASURED] == before, "nothing is due"
    known = length.record_of(learner.state.numbers)
    setattr(known, accident, getattr(known, accident) + 1)
    moves = learner.state.counts[MOVES]
    learner.learn(X[2:3], y[2:3])
    assert learner.state.counts[MEASURED] == moves
    learner.learn(X[3:4], y[3:4])
    assert learner.state.counts[MEASURED] == moves, "one accident is one reason"


def test_a_block_without_a_level_waits_for_the_next_sample_that_has_one():
    """The first inputs are 0, so weights have no gradient and no product: their level is unknown."""
    network = Network([3, 2], seed=1)
    X, y = some_data(network, 200, seed=10)
    X[:100] = 0
    learner = learn_one(ROBUST, network, X[:100], y[:100])
    assert learner.state.level_square[0] == 0
    assert learner.state.level_square[1] > 0
    learner.learn(X[100:101], y[100:101])
    assert learner.state.level_square[0] > 0
    before = learner.state.iterate[:6].copy()
    learner.learn(X[101:], y[101:])
    assert np.all(learner.state.iterate[:6] != before)


# --- The direction --------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [None, 0.5])
@pytest.mark.parametrize(
    "name", ["[7, 5, 3] tanh cross-entropy l2=0.03", "[17, 2] tanh squared-error l2=0.0"]
)
def test_the_direction_is_the_formula(name, floor):
    network = network_like(NETWORKS[name], seed=3)
    X, y = some_data(network, 100, seed=11)
    learner = learn_one(VSGD(dialect="robust", curvature_floor=floor), network, X[:90], y[:90])
    sizes = learner.state.sizes
    for x, target in zip(X[90:], y[90:], strict=True):
        theta = learner.state.iterate.astype(np.float64)
        g, v = (
            getattr(learner.state, name).astype(np.float64) for name in ("mean_gradient", "mean_square")
        )
        tau = np.repeat(learner.state.memory, sizes)
        model = Model(network)
        gradient = flat(model.gradient(x, target, like(model.blocks, theta)))
        typical = np.repeat([part.mean() for part in np.split(v, np.cumsum(sizes)[:-1])], sizes)
        learner.learn([x], [target])
        g += (gradient - g) / tau
        v += (gradient**2 - v) / tau
        level = np.repeat(np.maximum(np.sqrt(learner.state.level_square), floor or 0.0), sizes)
        wanted = g**2 / v * gradient / (level * np.maximum(np.sqrt(v / typical), 1))
        np.testing.assert_allclose(
            learner.state.direction, wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max()
        )
