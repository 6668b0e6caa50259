"""Gradient, curvature and Hessian-vector product of the kernels, read off the first step of a method."""

import numpy as np
import pytest

from pesky.online import SGD, SMD, VSGD, Learner, Network, fit
from pesky.online.learner import samples_of
from tests.online.cases import network_like, some_data
from tests.online.reference import EPS, Model, flat, softmax

LOSSES = ("cross-entropy", "squared-error")
NETWORKS = {
    f"{sizes} {activation} {loss} l2={l2}": Network(sizes, activation=activation, loss=loss, l2=l2)
    for sizes in ([7, 5, 3], [3, 1, 4, 2], [17, 2], [1, 1], [4, 9, 8, 3])
    for activation in ("tanh", "relu", "identity")
    for loss in LOSSES
    for l2 in (0.0, 0.03)
    if len(sizes) > 2 or activation == "tanh"
}
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def one_sample(network, seed):
    """A network with all parameters drawn anew, biases too, and a sample that float32 can judge.

    It is away from relu's kinks, and no probability is so near 1 that 1 - p is mostly rounding.
    """
    network = network_like(network, seed)
    for attempt in range(1000):
        rng = np.random.default_rng([seed, attempt])
        network.theta[:] = rng.normal(size=network.parameters) * 0.5
        model = Model(network)
        X, y = some_data(network, 1, [seed, attempt])
        sums = model.forward(model.blocks, X[0])[1]
        sure = network.loss == "cross-entropy" and np.max(softmax(sums[-1])) > 0.95
        if all(np.all(np.abs(hidden) > 1e-2) for hidden in sums[:-1]) and (
            not sure or len(sums[-1]) == 1
        ):
            return network, X, y, model
    raise AssertionError("no such sample")


def assert_near(actual, wanted, tolerance=1e-4):
    assert np.max(np.abs(actual - wanted)) <= tolerance * np.max(np.abs(wanted))


def gradient_of(network, X, y):
    """Of one sample: a step of plain SGD, so large that the parameters themselves hardly matter."""
    before, eta = network.theta.astype(np.float64), 1024.0
    result = fit(network, SGD(eta), X, y)
    assert result.steps == 1
    return (before - network.theta) / eta


def curvature_of(network, X, y, granularity="element"):
    """Of one sample: it is both the initial sample and the first, so h is its average with itself."""
    method = VSGD(granularity, slow_start=1, init_samples=1)
    return fit(network, method, X, y).learner.state.mean_curvature


def hessian_times(network, X, y, direction):
    """From SMD's trace after one step, v' = k v - (gradient + k H v) with k = 1/2."""
    learner = Learner(network_like(network), SMD(1.0, mu=0.0, tau=2.0))
    learner.network.set_parameters(network.theta)
    learner.state.trace[:] = direction
    inputs = network.check_inputs(X)
    samples = samples_of(inputs, network.check_targets(inputs, y))
    learner.start(samples, np.arange(1))
    learner.advance(samples, np.arange(1))
    model = Model(network)
    gradient = flat(model.gradient(X[0], y[0]))
    return (direction / 2 - learner.state.trace - gradient) * 2


@every_network
def test_the_gradient_is_the_derivative_of_the_loss(network, fresh_seed):
    network, X, y, model = one_sample(network, fresh_seed)
    assert_near(gradient_of(network, X, y), flat(model.derivatives(X[0], y[0])))


@every_network
def test_the_twins_own_gradient_is_the_derivative_of_its_loss(network, fresh_seed):
    _, X, y, model = one_sample(network, fresh_seed)
    assert_near(flat(model.gradient(X[0], y[0])), flat(model.derivatives(X[0], y[0])), 1e-10)


@every_network
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_bbprop_follows_the_independent_computation(network, granularity, fresh_seed):
    network, X, y, model = one_sample(network, fresh_seed)
    assert_near(curvature_of(network, X, y, granularity), flat(model.curvature(X[0])))


def exact_gauss_newton_diagonal(model, x):
    """diag(J^T H J): J holds the outputs' derivatives by the parameters, H the loss's second ones."""
    columns = []
    for n, block in enumerate(model.blocks):
        for index in np.ndindex(block.shape):
            moved = [b.astype(complex) for b in model.blocks]
            moved[n][index] += 1j * EPS
            columns.append(model.forward(moved, x)[1][-1].imag / EPS)
    J = np.array(columns).T
    p = softmax(model.outputs(x))
    H = np.diag(p) - np.outer(p, p) if model.loss_name == "cross-entropy" else np.eye(len(p))
    penalty = [np.full(block.shape, model.l2 * (block.ndim == 2)) for block in model.blocks]
    return np.diag(J.T @ H @ J) + flat(penalty)


@pytest.mark.parametrize("sizes", [[17, 2], [3, 4], [1, 1], [5, 3]])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("l2", [0.0, 0.03])
def test_without_hidden_layers_bbprop_is_the_exact_gauss_newton_diagonal(sizes, loss, l2, fresh_seed):
    network, X, y, model = one_sample(Network(sizes, loss=loss, l2=l2), fresh_seed)
    wanted = exact_gauss_newton_diagonal(model, X[0])
    assert np.max(np.abs(curvature_of(network, X, y) - wanted)) <= 1e-4 * max(np.max(wanted), 1e-7)


@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
def test_with_one_output_and_one_hidden_layer_bbprop_is_exact_too(activation, fresh_seed):
    network = Network([4, 6, 1], activation=activation, loss="squared-error", l2=0.01)
    network, X, y, model = one_sample(network, fresh_seed)
    assert_near(curvature_of(network, X, y), exact_gauss_newton_diagonal(model, X[0]))


@every_network
def test_the_hessian_vector_product_is_the_derivative_of_the_gradient(network, fresh_seed):
    network, X, y, model = one_sample(network, fresh_seed)
    direction = np.random.default_rng(fresh_seed).normal(size=network.parameters).astype(np.float32)
    parts = np.split(direction.astype(np.float64), np.cumsum([b.size for b in model.blocks])[:-1])
    shaped = [part.reshape(b.shape) for part, b in zip(parts, model.blocks, strict=True)]
    wanted = flat(model.hessian_times(X[0], y[0], shaped))
    # The trace holds gradient and direction too: what they lose to rounding is no fault of the product.
    scale = max(np.max(np.abs(x)) for x in (wanted, direction, flat(model.gradient(X[0], y[0]))))
    assert np.max(np.abs(hessian_times(network, X, y, direction) - wanted)) <= 1e-4 * scale


def test_the_twins_hessian_is_symmetric_and_agrees_with_finite_differences(fresh_seed):
    _, X, y, model = one_sample(Network([4, 5, 3], l2=0.01), fresh_seed)
    rng = np.random.default_rng(fresh_seed)
    u, v = ([rng.normal(size=b.shape) for b in model.blocks] for _ in range(2))
    Hu, Hv = (flat(model.hessian_times(X[0], y[0], w)) for w in (u, v))
    assert flat(v) @ Hu == pytest.approx(flat(u) @ Hv, rel=1e-9, abs=1e-9)
    there, back = (
        flat(model.gradient(X[0], y[0], [b + e * w for b, w in zip(model.blocks, v, strict=True)]))
        for e in (1e-5, -1e-5)
    )
    np.testing.assert_allclose((there - back) / 2e-5, Hv, rtol=1e-6, atol=1e-6)


@every_network
def test_kernels_and_predictions_compute_the_same_outputs(network, fresh_seed):
    """The gradient of a bias in the last layer is output - target, or softmax(output) - 1[target]."""
    network, X, y, _ = one_sample(network, fresh_seed)
    if network.loss == "squared-error":
        wanted = network.outputs(X)[0] - y[0]
    else:
        wanted = network.predict_proba(X)[0].copy()
        wanted[y[0]] -= 1
    last = slice(network.parameters - network.sizes[-1], None)
    np.testing.assert_allclose(gradient_of(network, X, y)[last], wanted, rtol=1e-4, atol=1e-5)


@every_network
def test_the_reported_loss_is_the_models(network, fresh_seed):
    network, X, y, model = one_sample(network, fresh_seed)
    result = fit(network, SGD(1e-6), X, y)
    np.testing.assert_allclose(result.loss, [model.loss(X[0], y[0])], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [30.0, 1e3, 1e6])
def test_a_saturated_softmax_gives_the_exact_loss_and_gradient(scale):
    network = Network([1, 3])
    network.theta[:] = [scale, 0, -scale, 0, 0, 0]
    X, y = [[1.0]], [2]
    model = Model(network)
    wanted = flat(model.gradient([1.0], 2))
    result = fit(network_with(network), SGD(1e-9), X, y)
    np.testing.assert_allclose(result.loss, [2 * scale], rtol=1e-6)
    np.testing.assert_allclose(gradient_of(network_with(network), X, y), wanted, rtol=1e-3, atol=1e-3)


def network_with(network):
    copy = network_like(network)
    copy.set_parameters(network.theta)
    return copy
