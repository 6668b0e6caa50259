"""The simulation against closed forms, against its slow twin, and under changes of units."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pesky.errors import InputError
from pesky.quadratic import SGD, VSGD, NoisyQuadratic, Oracle, oracle, simulate
from pesky.quadratic.problem import Landscape
from tests.reference import ReferenceBlock, ReferenceElement

ADAPTIVE = [
    VSGD("element"),
    VSGD("block", blocks=(1, 2)),
    VSGD("global"),
    VSGD("element", curvature="estimated", slow_start=3.0),
]
positive = st.floats(0.05, 20.0)


def expected_excess(eta, h, distance, sigma):
    """The paper's expected loss after one step, less the noise floor, for one parameter."""
    return h * ((1 - eta * h) ** 2 * distance**2 + eta**2 * h**2 * sigma**2) / 2


@pytest.mark.parametrize("eta", [0.01, 0.2, 1.0, 1.7])
def test_loss_after_one_step_is_the_papers_expression(eta, fresh_seed):
    h, sigma, start, optimum = 1.3, 0.7, 2.0, -1.0
    problem = NoisyQuadratic(curvature=h, noise=sigma, start=start, optimum=optimum)
    losses = simulate(problem, SGD(eta), steps=1, runs=100_000, seed=fresh_seed).excess_loss[1]
    error = 6 * losses.std() / np.sqrt(losses.size)
    assert losses.mean() == pytest.approx(expected_excess(eta, h, start - optimum, sigma), abs=error)


def minimiser(loss):
    """Where a parabola is lowest, without rounding: `loss` is called with fractions."""
    first, second, third = (loss(Fraction(eta)) for eta in range(3))
    bend = third - 2 * second + first
    return float(Fraction(1, 2) - (second - first) / bend)


@given(h=positive, distance=positive, sigma=positive)
def test_ideal_rate_minimises_the_expected_loss(h, distance, sigma):
    exact = [Fraction(value) for value in (h, distance, sigma)]
    best = minimiser(lambda eta: expected_excess(eta, *exact))
    assert oracle.ideal_rate(distance, h, sigma) == pytest.approx(best, rel=1e-12)


def global_rate(h, distance, sigma):
    signal, power = oracle.ideal_moments(distance, h, sigma)
    return oracle.ideal_global_rate(signal.sum(), power.sum(), (h * power).sum())


@given(st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=6))
def test_ideal_global_rate_minimises_the_sum_and_respects_its_bound(triples):
    exact = [[Fraction(value) for value in triple] for triple in triples]
    best = minimiser(lambda eta: sum(expected_excess(eta, *triple) for triple in exact))
    h, distance, sigma = np.array(triples).T
    rate = global_rate(h, distance, sigma)
    assert rate == pytest.approx(best, rel=1e-12)
    printed = (h**2 * distance**2).sum() / (h**3 * (distance**2 + sigma**2)).sum()
    assert rate == pytest.approx(printed, rel=1e-12)
    signal, power = oracle.ideal_moments(distance, h, sigma)
    assert rate >= signal.sum() / power.sum() / h.max() * (1 - 1e-12)


@given(h=positive, distance=positive, sigma=positive)
def test_oracle_never_raises_the_expected_loss(h, distance, sigma):
    eta = oracle.ideal_rate(distance, h, sigma)
    before, after = 0.5 * h * distance**2, expected_excess(eta, h, distance, sigma)
    # The appendix's decrease, with its misprint mended.
    assert before - after == pytest.approx(0.5 * h**2 * eta * distance**2, rel=1e-9)
    assert after < before


@pytest.mark.parametrize("oracle", [Oracle("element"), Oracle("global")])
def test_oracle_loss_falls_and_its_rate_tends_to_zero(oracle, fresh_seed):
    problem = NoisyQuadratic(curvature=[1.0, 3.0], noise=[1.0, 0.5], start=[4.0, -4.0])
    trace = simulate(problem, oracle, steps=400, runs=4000, seed=fresh_seed)
    rises = np.diff(trace.excess_loss, axis=0)
    assert np.all(rises.mean(axis=1) <= 6 * rises.std(axis=1) / np.sqrt(4000))
    rate = trace.median_rate()
    assert rate[-1] < 0.01 * rate[0]
    if oracle.granularity == "element":
        # E[x'] = E[x sigma^2 / (x + sigma^2)], concave in x, so E[x] <= sigma^2 / t after t steps.
        bound = 0.5 * (1.0 * 1.0**2 + 3.0 * 0.5**2) / 400
        last = trace.excess_loss[-1]
        assert last.mean() <= bound + 6 * last.std() / np.sqrt(4000)


@pytest.mark.parametrize("estimated", [False, True])
def test_element_rates_follow_algorithm_1(estimated):
    h, start = np.array([1.0, 10.0]), np.array([2.0, 3.0])
    method = VSGD(curvature="estimated" if estimated else "known", slow_start=4.0)
    problem = NoisyQuadratic(curvature=h, start=start)
    trace = simulate(problem, method, steps=40, runs=1, seed=5)
    noise, first = replay(steps=40, initial=10, dimension=2, seed=5)
    for i in range(2):
        initial = h[i] * (start[i] - first[:, i])
        twin = ReferenceElement(
            g=initial.mean(),
            v=4 * (initial**2).mean(),
            h=h[i] * (4 if estimated else 1),
        )
        theta = start[i]
        for t in range(40):
            assert trace.position[t, 0, i] == pytest.approx(theta, rel=1e-8)
            theta = twin.step(theta, h[i] * (theta - noise[t, i]), h[i])
        np.testing.assert_allclose(trace.rate[:, 0, i], twin.rates, rtol=1e-7)


@pytest.mark.parametrize(("method", "sizes"), [(ADAPTIVE[1], (1, 2)), (ADAPTIVE[2], (3,))])
def test_block_and_global_rates_follow_the_paper(method, sizes):
    h, start = np.array([1.0, 10.0, 0.3]), np.array([2.0, 3.0, -4.0])
    trace = simulate(NoisyQuadratic(curvature=h, start=start), method, steps=40, runs=1, seed=7)
    noise, first = replay(steps=40, initial=10, dimension=3, seed=7)
    initial = h * (start - first)
    ends = np.cumsum(sizes)
    for begin, end in zip(ends - sizes, ends, strict=True):
        part = slice(begin, end)
        twin = ReferenceBlock(
            g=list(initial[:, part].mean(axis=0)),
            l=float((initial[:, part] ** 2).sum(axis=1).mean()),
            h=list(h[part]),
        )
        theta = list(start[part])
        for t in range(40):
            np.testing.assert_allclose(trace.position[t, 0, part], theta, rtol=1e-8)
            gradient = h[part] * (np.array(theta) - noise[t, part])
            theta = twin.step(theta, list(gradient), list(h[part]))


def replay(*, steps, initial, dimension, seed):
    """The samples' optima that `simulate` draws for one run: of the steps, and before them."""
    first, samples, _ = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    return (
        np.array([samples.standard_normal((1, dimension))[0] for _ in range(steps)]),
        np.array([first.standard_normal((1, dimension))[0] for _ in range(initial)]),
    )


@pytest.mark.parametrize("method", ADAPTIVE, ids=lambda method: f"{method.name}-{method.curvature}")
@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 2**31))
def test_scaling_the_loss_changes_nothing(method, scale, seed):
    h = np.array([1.0, 5.0, 0.2])
    one, other = (
        simulate(NoisyQuadratic(curvature=h * c), method, steps=30, runs=3, seed=seed).position
        for c in (1.0, scale)
    )
    np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-4, 1e4), seed=st.integers(0, 2**31))
def test_rescaling_a_parameter_rescales_its_path(scale, seed):
    units = np.array([1.0, scale])
    one, other = (
        simulate(
            NoisyQuadratic(curvature=[2.0, 3.0] / u**2, noise=u, optimum=0.5 * u, start=4 * u),
            VSGD(),
            steps=30,
            runs=3,
            seed=seed,
        ).position
        for u in (np.ones(2), units)
    )
    np.testing.assert_allclose(other / units, one, rtol=1e-6, atol=1e-6)


@given(seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_granularities_coincide_where_they_must(seed):
    problem = NoisyQuadratic(curvature=[1.0, 4.0, 9.0])
    element = simulate(problem, VSGD(), steps=40, runs=5, seed=seed)
    ones = simulate(problem, VSGD("block", blocks=(1, 1, 1)), steps=40, runs=5, seed=seed)
    np.testing.assert_array_equal(element.position, ones.position)
    single = NoisyQuadratic(curvature=2.0)
    element = simulate(single, VSGD(), steps=40, runs=5, seed=seed)
    common = simulate(single, VSGD("global"), steps=40, runs=5, seed=seed)
    np.testing.assert_array_equal(element.position, common.position)
    ideal = simulate(single, Oracle("element"), steps=40, runs=5, seed=seed)
    ideal_common = simulate(single, Oracle("global"), steps=40, runs=5, seed=seed)
    np.testing.assert_allclose(ideal.position, ideal_common.position, rtol=1e-10)


@pytest.mark.parametrize("method", ADAPTIVE, ids=lambda method: f"{method.name}-{method.curvature}")
def test_a_sample_whose_square_overflows_changes_nothing_and_is_counted(method):
    problem = NoisyQuadratic(curvature=[1.0, 2.0, 3.0], change_every=10, curvature_factor=1e200)
    trace = simulate(problem, method, steps=25, runs=4, seed=1)
    np.testing.assert_array_equal(trace.rejected, 10)
    np.testing.assert_array_equal(trace.position[10:21], np.tile(trace.position[10], (11, 1, 1)))
    assert np.all(trace.rate[10:20] == 0)
    assert np.all(trace.rate[20:] > 0)


def test_rejected_runs_keep_their_statistics_while_others_learn():
    problem = NoisyQuadratic(curvature=[1.0, 2.0])
    stepper = VSGD().begin(problem, 2, lambda factor: (np.ones((2, 2)), np.ones((2, 1), bool)))
    before = stepper.statistics
    landscape = Landscape.first(problem, 2)
    stepper.rates(landscape, np.zeros((2, 2)), np.full((2, 2), 3.0))
    stepper.accept(np.array([[True], [False]]))
    after = stepper.statistics
    assert np.all(after.mean_gradient[0] != before.mean_gradient[0])
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new[1], old[1])


def test_initial_samples_that_overflow_leave_a_state_that_stays_put():
    problem = NoisyQuadratic(curvature=1e200)
    trace = simulate(problem, VSGD(), steps=5, runs=3)
    np.testing.assert_array_equal(trace.rejected, 10 + 5)
    np.testing.assert_array_equal(trace.position, 5.0)


def test_a_fixed_rate_that_diverges_is_counted_and_stays_finite():
    trace = simulate(NoisyQuadratic(), SGD(10.0), steps=1000, runs=3)
    assert np.all(trace.rejected > 0)
    assert np.all(np.isfinite(trace.position))


def test_a_step_to_infinity_is_not_taken_and_counted_once():
    problem = NoisyQuadratic(noise=0.0, start=1e10)
    trace = simulate(problem, SGD(1e300), steps=4, runs=3)  # the gradient's square is finite
    np.testing.assert_array_equal(trace.position, 1e10)
    np.testing.assert_array_equal(trace.rejected, 4)
    np.testing.assert_array_equal(trace.rate, 0.0)


@dataclass
class Recorder:
    """A method whose rate sends every second run to infinity; it notes what it may learn from."""

    name = "recorder"
    accepted: list[np.ndarray] = field(default_factory=list)

    def begin(self, problem, runs, draw):
        return self

    def rates(self, landscape, theta, gradient):
        return np.where(np.arange(len(theta))[:, None] % 2, np.nan, 0.5)

    def accept(self, accepted):
        self.accepted.append(accepted)


def test_a_method_learns_nothing_from_a_step_not_taken():
    method = Recorder()
    trace = simulate(NoisyQuadratic(curvature=[1.0, 2.0]), method, steps=3, runs=4)
    assert len(method.accepted) == 3
    for accepted in method.accepted:
        np.testing.assert_array_equal(accepted, [[True], [False], [True], [False]])
    np.testing.assert_array_equal(trace.rejected, [0, 3, 0, 3])
    np.testing.assert_array_equal(trace.rate[:, 1::2], 0.0)


def test_initial_samples_that_overflow_when_scaled_are_dropped():
    problem = NoisyQuadratic(curvature=1e150)  # squares near 1e301
    method = VSGD(slow_start=1e10)
    trace = simulate(problem, method, steps=3, runs=4)
    np.testing.assert_array_equal(trace.rejected, method.init_samples)
    assert np.all(trace.rate > 0)


def test_whole_numbers_may_be_floats():
    problem = NoisyQuadratic(curvature=[1.0, 1.0], change_every=2.0, optimum_jump=1)
    method = VSGD("block", blocks=[np.int64(1), 1.0], init_samples=3.0)
    trace = simulate(problem, method, steps=4.0, runs=np.float32(2), seed=1.0)
    assert trace.rate.shape == (4, 2, 2)
    exact = NoisyQuadratic(curvature=[1.0, 1.0], change_every=2, optimum_jump=1.0)
    other = simulate(exact, VSGD("block", (1, 1), init_samples=3), steps=4, runs=2, seed=1)
    np.testing.assert_array_equal(trace.position, other.position)


def test_problems_can_be_compared_and_hashed():
    one, other = NoisyQuadratic(curvature=[1.0, 2.0]), NoisyQuadratic(curvature=[1.0, 2.0])
    assert one == one
    assert len({one, other}) == 2


@pytest.mark.parametrize("granularity", ["element", "global"])
def test_a_floor_slows_flat_directions_down(granularity):
    problem = NoisyQuadratic(curvature=0.01)
    free = simulate(problem, VSGD(granularity), steps=1, runs=5)
    bounded = simulate(problem, VSGD(granularity, curvature_floor=0.1), steps=1, runs=5)
    np.testing.assert_allclose(bounded.rate, free.rate / 10)


def test_schedules_are_what_their_names_say():
    problem = NoisyQuadratic()
    rates = {
        method.name: simulate(problem, method, steps=4, runs=1).rate[:, 0, 0]
        for method in (SGD(0.5), SGD(0.5, cooling="1/t"), SGD(0.5, gamma=2.0))
    }
    np.testing.assert_allclose(rates["SGD 0.5"], 0.5)
    np.testing.assert_allclose(rates["SGD 0.5/t"], 0.5 / np.array([1, 2, 3, 4]))
    np.testing.assert_allclose(rates["SGD 0.5/(1+2t)"], 0.5 / np.array([1, 3, 5, 7]))


def test_different_schedules_have_different_names():
    assert SGD(np.float64(0.1)).name == "SGD 0.1"
    assert SGD(0.12345678).name == "SGD 0.12345678"
    assert SGD(1, gamma=1e-9).name == "SGD 1/(1+1e-09t)"


def test_changes_happen_when_and_as_large_as_asked():
    problem = NoisyQuadratic(
        curvature=2.0, noise=0.5, change_every=3, optimum_jump=7.0, noise_factor=4.0, curvature_factor=10
    )
    trace = simulate(problem, SGD(1e-12), steps=9, runs=50, seed=2)
    floor = np.array([2 * 0.25] * 3 + [20 * 4.0] * 3 + [2 * 0.25] * 4) / 2
    np.testing.assert_allclose(trace.noise_floor, floor)
    distance = np.sqrt(2 * trace.excess_loss[3] / 20)
    assert set(np.round(distance, 6)) == {2.0, 12.0}
    np.testing.assert_allclose(trace.loss, trace.excess_loss + trace.noise_floor[:, None])


def test_methods_with_the_same_seed_meet_the_same_samples():
    problem = NoisyQuadratic(change_every=5, optimum_jump=1.0)
    newton = simulate(problem, SGD(1.0), steps=12, runs=4, seed=9)
    oracle = simulate(problem, Oracle(), steps=12, runs=4, seed=9)
    gradients = (oracle.position[:-1] - oracle.position[1:]) / oracle.rate
    # With h = 1 and rate 1 the step lands on the sample's own optimum.
    np.testing.assert_allclose(oracle.position[:-1] - gradients, newton.position[1:], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NoisyQuadratic(curvature=0.0), ["curvature", "0"]),
        (lambda: NoisyQuadratic(curvature=[1.0, 2.0], noise=[1.0, 1.0, 1.0]), ["curvature", "2", "3"]),
        (lambda: NoisyQuadratic(noise=-1.0), ["noise", "-1"]),
        (lambda: NoisyQuadratic(start=float("nan")), ["start", "nan"]),
        (lambda: NoisyQuadratic(start="here"), ["start", "here"]),
        (lambda: NoisyQuadratic(optimum_jump=3.0), ["change_every", "optimum_jump"]),
        (lambda: NoisyQuadratic(change_every=1.5), ["change_every", "1.5"]),
        (lambda: NoisyQuadratic(start=[10**400]), ["start", "1000"]),
        (lambda: NoisyQuadratic(change_every=1, optimum_jump=10**400), ["optimum_jump", "1000"]),
        (lambda: NoisyQuadratic(change_every=10**5000), ["change_every", "too long"]),
        (lambda: SGD(0.0), ["eta0", "0"]),
        (lambda: SGD(1.0, cooling="linear"), ["cooling", "linear"]),
        (lambda: SGD(1.0, gamma=1.0, cooling="1/t"), ["gamma", "1/t"]),
        (lambda: Oracle("block"), ["granularity", "block"]),
        (lambda: VSGD("layer"), ["granularity", "layer"]),
        (lambda: VSGD("block"), ["blocks", "()"]),
        (lambda: VSGD(blocks=(1, 2)), ["blocks", "(1, 2)"]),
        (lambda: VSGD("block", blocks=3), ["blocks", "3"]),
        (lambda: VSGD(curvature="guessed"), ["curvature", "guessed"]),
        (lambda: VSGD(init_samples=0), ["init_samples", "0"]),
        (lambda: VSGD(init_samples=10**9), ["init_samples", "1000000"]),
        (lambda: VSGD(slow_start=0.5), ["slow_start", "0.5"]),
        (lambda: VSGD(curvature_floor=0.0), ["curvature_floor", "0"]),
        (lambda: simulate(NoisyQuadratic(), VSGD("block", blocks=(2,))), ["blocks", "(2,)", "1"]),
        (lambda: simulate(NoisyQuadratic(), SGD(1.0), steps=0), ["steps", "0"]),
        (lambda: simulate(NoisyQuadratic(), SGD(1.0), runs=True), ["runs", "True"]),
        (lambda: simulate(NoisyQuadratic(), SGD(1.0), runs=float("inf")), ["runs", "inf"]),
        (lambda: simulate(NoisyQuadratic(), SGD(1.0), runs=float("nan")), ["runs", "nan"]),
        (lambda: simulate(NoisyQuadratic(), SGD(1.0), steps=10**9), ["steps", "memory"]),
        (lambda: simulate(NoisyQuadratic(), SGD(1.0), seed=-1), ["seed", "-1"]),
    ],
)
def test_bad_input_is_named_with_its_value(make, words):
    with pytest.raises(InputError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
