"""What the tests of the online engine share: its methods, and small data."""

import numpy as np
import pytest

from pesky.online import SGD, SMD, VSGD, AdaGrad, Almeida, Amari, Learner, Network

GOOD_X = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
GOOD_Y = [0, 1, 1]

# Every method must pass every test of this list. The factor of the slow start keeps vSGD-l stable on
# networks so small that d/10 is next to nothing.
METHODS = {
    "vsgd-l": VSGD(slow_start=100),
    "vsgd-b": VSGD("block"),
    "vsgd-g": VSGD("global"),
    "vsgd-robust": VSGD(dialect="robust"),
    "sgd": SGD(0.05, gamma=0.1),
    "adagrad": AdaGrad(0.1),
    "amari": Amari(0.001, tau=1000),
    "almeida": Almeida(0.01, tau=50, reading="product"),
    "smd": SMD(0.05, mu=0.01, tau=50),
}

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)

# Options that change the arithmetic.
VARIANTS = {
    "vsgd-l, literal": VSGD(slow_start=100, dialect="literal"),
    "vsgd-b, literal": VSGD("block", dialect="literal"),
    "vsgd-g, literal": VSGD("global", dialect="literal", init_samples=3),
    "vsgd-l, curvature every 3": VSGD(slow_start=100, curvature_every=3),
    "vsgd-b, curvature every 3": VSGD("block", curvature_every=3),
    "vsgd-g, curvature every 3": VSGD("global", curvature_every=3),
    "vsgd-l, floor": VSGD(slow_start=20, curvature_floor=3.0),
    "vsgd-b, floor": VSGD("block", curvature_floor=0.5),
    "vsgd-g, floor": VSGD("global", curvature_floor=0.5),
    "vsgd-robust, curvature every 1": VSGD(dialect="robust", curvature_every=1),
    "vsgd-robust, floor": VSGD(dialect="robust", curvature_floor=0.5, init_samples=3),
    "amari from samples": Amari(0.001, tau=50, start="samples"),
    "almeida from samples": Almeida(0.01, tau=50, reading="product", start="samples"),
    "almeida, printed": Almeida(0.01, tau=50, reading="printed"),
    "almeida, printed, from samples": Almeida(0.001, tau=50, reading="printed", start="samples"),
    "almeida, multiplicative": Almeida(0.1, tau=50, reading="multiplicative"),
}


def some_data(network, samples, seed, own_targets=True):
    """Normal inputs, random labels or targets; all of it exact in float32."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(samples, network.sizes[0])).astype(np.float32)
    if network.loss == "cross-entropy":
        return X, rng.integers(network.sizes[-1], size=samples)
    return X, rng.normal(size=(samples, network.sizes[-1])).astype(np.float32) if own_targets else None


def separable_data(samples, seed):
    """Two classes on either side of a line, with a gap between them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=samples)
    X = rng.normal(size=(samples, 3))
    X[:, 0] = (2 * y - 1) * (1 + np.abs(X[:, 0]))
    return X, y


def learn_one(method, network, X, y=None):
    """Train on the samples as they come."""
    return Learner(network, method).learn(X, y)


def assert_same_run(one, other):
    """Two learners that are the same to the last bit."""
    np.testing.assert_array_equal(one.network.theta, other.network.theta)
    for name, value in one.state._asdict().items():
        np.testing.assert_array_equal(getattr(other.state, name), value, err_msg=name)
    for name, value in one.trace.arrays().items():
        np.testing.assert_array_equal(other.trace.arrays()[name], value, err_msg=f"trace {name}")
    assert (one.steps, one.rejected, one.diverged_at) == (
        other.steps,
        other.rejected,
        other.diverged_at,
    )


def network_like(network, seed=0):
    settings = network.settings()
    return Network(settings.pop("sizes"), **settings, seed=seed)
