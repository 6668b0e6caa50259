"""Whatever the data: finite parameters, a clean end, and the same numbers in every process."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pesky.online import SGD, SMD, VSGD, AdaGrad, Almeida, Amari, Learner, Network, fit
from pesky.online.learner import samples_of
from tests.online.cases import (
    METHODS,
    assert_same_run,
    every_method,
    network_like,
    separable_data,
    some_data,
)

# The tuned settings of the shared list, and some that invite trouble.
WILD = [
    *METHODS.values(),
    VSGD(),
    VSGD(slow_start=1),
    SGD(100.0),
    AdaGrad(10.0),
    Amari(1.0, tau=1),
    Almeida(3.0, tau=10),
    Almeida(3.0, tau=10, reading="printed"),
    Almeida(0.9, tau=1, reading="multiplicative"),
    SMD(10.0, mu=0.1, tau=1e5),
    SMD(0.1, mu=100.0, tau=10),
]
SCALES = st.integers(-12, 12).map(lambda power: 10.0**power)


@settings(deadline=None, max_examples=150)
@given(
    method=st.sampled_from(WILD),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    activation=st.sampled_from(["tanh", "relu", "identity"]),
    loss=st.sampled_from(["cross-entropy", "squared-error"]),
    l2=st.sampled_from([0.0, 1e-4]),
    input_scale=SCALES,
    target_scale=SCALES,
    seed=st.integers(0, 2**31),
)
@example(  # rates that are multiplied pass float32's range
    method=Almeida(0.9, tau=1, reading="multiplicative"),
    sizes=[5, 5, 2],
    activation="tanh",
    loss="squared-error",
    l2=1e-4,
    input_scale=1e-11,
    target_scale=1e7,
    seed=1953462266,
)
@example(  # the square of v, or of h, passes it where NumPy looks
    method=Amari(1.0, tau=1),
    sizes=[4, 4],
    activation="relu",
    loss="squared-error",
    l2=1e-4,
    input_scale=1e3,
    target_scale=1e9,
    seed=1706330194,
)
@example(
    method=VSGD(),
    sizes=[1, 6, 1],
    activation="identity",
    loss="squared-error",
    l2=1e-4,
    input_scale=1e8,
    target_scale=1e8,
    seed=1419973183,
)
@example(  # the trace passes it before the parameters do
    method=SMD(10.0, mu=0.1, tau=1e5),
    sizes=[4, 2, 5, 4],
    activation="tanh",
    loss="cross-entropy",
    l2=1e-4,
    input_scale=10.0,
    target_scale=1.0,
    seed=0,
)
def test_parameters_stay_finite_and_rates_are_not_negative(
    method, sizes, activation, loss, l2, input_scale, target_scale, seed
):
    network = Network(sizes, activation=activation, loss=loss, l2=l2, seed=seed)
    X, y = some_data(network, 30, seed)
    X = X * np.float32(input_scale)
    if loss == "squared-error":
        y = y * np.float32(target_scale)
    result = fit(network, method, X, y, epochs=3, seed=seed)
    assert np.all(np.isfinite(network.theta))
    assert np.all(np.isfinite(result.trace["rate"]))
    assert np.all(result.trace["rate"] >= 0)
    assert result.status == ("finished" if result.diverged_at is None else "diverged")
    assert result.steps == (90 if result.diverged_at is None else result.diverged_at)
    assert np.all(np.isfinite(result.trace["loss"]))
    if result.status == "finished":
        for name, value in result.learner.state._asdict().items():
            whole_sum = name == "total"  # AdaGrad's may grow to infinity: a rate of 0
            assert value is None or whole_sum or np.all(np.isfinite(value)), name


@settings(deadline=None, max_examples=40)
@given(method=st.sampled_from(list(METHODS.values())), scale=SCALES, seed=st.integers(0, 2**31))
def test_a_stream_of_any_scale_is_cut_as_one_likes(method, scale, seed):
    network = Network([3, 4, 2], l2=1e-4, seed=seed)
    X, y = some_data(network, 60, seed)
    X = X * np.float32(scale)
    whole = Learner(network_like(network, seed), method).learn(X, y)
    pieces = Learner(network_like(network, seed), method)
    for part in np.array_split(np.arange(60), np.random.default_rng(seed).integers(1, 60, 6).cumsum()):
        pieces.learn(X[part], y[part])
    assert_same_run(pieces, whole)


DIVERGING = {
    "squared error": (Network([3, 2], loss="squared-error"), SGD(1e3)),
    "squared error, barely": (Network([3, 2], loss="squared-error"), SGD(3.0)),
    "a hidden layer": (Network([3, 5, 2], loss="squared-error"), SGD(1e3)),
    "relu": (Network([3, 5, 5, 2], loss="squared-error", activation="relu"), SGD(100.0)),
    "linear layers": (Network([3, 5, 5, 2], loss="squared-error", activation="identity"), SGD(10.0)),
    "cross-entropy": (Network([3, 5, 2], activation="identity"), SGD(1e30)),
    "infinite at once": (Network([3, 5, 2], loss="squared-error", activation="identity"), SGD(1e38)),
    "adagrad": (Network([3, 5, 2], loss="squared-error", activation="identity"), AdaGrad(1e10)),
    "amari": (Network([3, 5, 2], loss="squared-error", activation="identity"), Amari(1e5, tau=10)),
    "smd": (Network([3, 5, 2], loss="squared-error", activation="identity"), SMD(5.0, mu=0.1, tau=100)),
}


@pytest.mark.parametrize(("network", "method"), DIVERGING.values(), ids=DIVERGING)
def test_divergence_is_noticed_within_the_epoch_and_reported(network, method, tmp_path):
    network = network_like(network)
    X, y = some_data(network, 500, seed=1)
    calls = []
    path = tmp_path / "run.npz"
    result = fit(network, method, X, y, epochs=5, callback=calls.append, checkpoint=path)
    assert result.status == "diverged"
    assert 1 <= result.diverged_at <= 500
    assert result.steps == result.diverged_at
    assert calls == [], "no epoch was finished"
    assert np.all(np.isfinite(network.theta))
    assert np.all(np.isfinite(result.trace["rate"]))
    assert result.trace["step"][-1] == result.diverged_at
    again = fit(network_like(network), method, X, y, epochs=5, checkpoint=path)
    assert (again.status, again.diverged_at) == ("diverged", result.diverged_at)
    stuck = Learner.load(path)
    stuck.learn(X, y)
    assert stuck.steps == result.diverged_at, "nothing is learnt any more"


@every_method
def test_large_losses_from_the_start_are_no_divergence(method):
    """Targets in the millions; the step is as small as the data are large."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 3))
    y = 1e6 * (X @ rng.normal(size=(3, 1)))
    small = {"eta0": 1e-12, "mu": 1e-14}
    method = type(method)(**{name: small.get(name, value) for name, value in vars(method).items()})
    result = fit(Network([3, 1], loss="squared-error"), method, X, y, epochs=2)
    assert result.status == "finished"
    assert result.rejected == 0


@every_method
@pytest.mark.parametrize("place", [0, 25])
def test_a_sample_too_large_for_float32_is_dropped_and_counted(method, place):
    """Its squared gradient would be infinite; everything goes on as if it had not come."""
    network = Network([3, 2], l2=1e-4)
    X, y = some_data(network, 50, seed=2)
    without = Learner(network_like(network), method).learn(X, y)
    X = np.insert(X, place, 1e25, axis=0)
    for label in (0, 1):  # the network may be right about one of them, with a loss of 0
        learner = Learner(network_like(network), method).learn(X, np.insert(y, place, label))
        assert learner.diverged_at is None
        assert (learner.steps, learner.rejected > 0) == (51, True)
        assert np.all(np.isfinite(learner.network.theta))
        if method == METHODS["vsgd-robust"]:  # it may take its last step for the reason, and undo it
            continue
        assert learner.rejected == 1
        if place >= 10:
            np.testing.assert_array_equal(learner.network.theta, without.network.theta)


# Threads and signals


def test_kernels_let_other_threads_run():
    network = Network([100, 100, 10])
    X, y = some_data(network, 1000, seed=3)
    learner = Learner(network, SGD(1e-3))
    samples = samples_of(network.check_inputs(X), network.check_targets(X, y))
    learner.start(samples, np.arange(10))
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    other = threading.Thread(target=tick)
    other.start()
    try:
        started = time.perf_counter()
        learner.train(samples, np.arange(30_000) % 1000)  # one call, no Python in between
        ended = time.perf_counter()
    finally:
        done.set()
        other.join()
    margin = (ended - started) / 10
    inside = [t for t in ticks if started + margin < t < ended - margin]
    assert len(inside) > 10


@every_method
def test_runs_in_threads_over_one_copy_of_the_data_do_not_disturb_each_other(method):
    X, y = separable_data(2000, seed=4)
    X = X.astype(np.float32)

    def run(seed):
        return fit(Network([3, 8, 2]), method, X, y, epochs=2, seed=seed)

    alone = [run(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    for one, other in zip(alone, together, strict=True):
        assert other.status == "finished"
        assert_same_run(other.learner, one.learner)


def test_another_thread_stops_a_run():
    stop = threading.Event()
    X, y = separable_data(100, seed=5)

    def later(moment):
        if moment.step == 300:
            stop.set()

    result = fit(Network([3, 2]), SGD(0.1), X, y, epochs=100, callback=later, stop=stop)
    assert (result.status, result.steps) == ("interrupted", 300)


LONG_RUN = """
import numpy as np
from pesky.online import SGD, Network, fit
rng = np.random.default_rng(0)
X = rng.normal(size=(20000, 50)).astype(np.float32)
y = (X[:, 0] > 0).astype(int)
network = Network([50, 50, 2])
first = lambda moment: print("epoch", flush=True) if moment.step == 20000 else None
result = fit(network, SGD(0.01), X, y, epochs=100000, callback=first)
print(result.status, result.steps == result.learner.steps, result.steps >= 20000)
print(bool(np.all(np.isfinite(network.theta))), network.error(X, y) < 20)
again = fit(network, SGD(0.01), X, y)
print(again.status)
"""


@pytest.mark.subprocess
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for another process")
def test_ctrl_c_stops_a_process_cleanly_with_a_usable_model():
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_RUN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "epoch\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert out.splitlines() == ["interrupted True True", "True True", "finished"], err
    assert process.returncode == 0
    assert "Traceback" not in err
