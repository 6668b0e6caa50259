"""The paper's dialect is the online engine's arithmetic, step by step, at batch size 1."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pesky import online
from pesky.online import Learner, Network
from pesky.torch import VSGD
from tests.online.twins import twin_of
from tests.torch.networks import SHAPES, classes, flat, one_by_one, samples_of, split, torch_twin

INITIAL = 10
# Rounding differs between processors, and a network's path amplifies it: with element-wise rates to 1e-5
# of a parameter after 30 steps, and to a hundred times more after 120.
STEPS_OF_FLOAT32, TOLERANCE_OF_FLOAT32 = 30, {"rtol": 2e-4, "atol": 2e-4}
GRANULARITIES = ("element", "block", "global")


def run(method, sizes, l2, dtype, steps, **settings):
    """Yield the network after each step: torch's parameters, and the engine's method beside it."""
    inputs, labels = classes(sizes, steps)
    network = Network(sizes, l2=l2)
    model = torch_twin(network, dtype)
    optimizer = VSGD(
        split(model, l2) if l2 else model.parameters(),
        granularity=method.granularity,
        init_batches=INITIAL,
        curvature_every=method.curvature_every,
        curvature_floor=method.curvature_floor,
        dialect="paper",
        even_start=False,  # as the engine
        **settings,
    )
    before = flat(model)
    for x, y in one_by_one(inputs[:INITIAL], labels[:INITIAL], dtype):
        optimizer.minimize(lambda x=x, y=y: cross_entropy(model(x), y))
    np.testing.assert_array_equal(flat(model), before)
    for x, y in one_by_one(inputs, labels, dtype):
        optimizer.minimize(lambda x=x, y=y: cross_entropy(model(x), y))
        yield flat(model)


def engine(method, sizes, l2, steps):
    inputs, labels = classes(sizes, steps)
    learner = Learner(Network(sizes, l2=l2), method)
    samples = samples_of(inputs, labels)
    learner.start(samples, np.arange(INITIAL))
    for step in range(steps):
        learner.advance(samples, np.array([step]))
        yield learner.network.theta


def float64_reference(method, sizes, l2, steps):
    inputs, labels = classes(sizes, steps)
    twin = twin_of(method, Network(sizes, l2=l2))
    pairs = list(zip(inputs, labels, strict=True))
    twin.begin(pairs[:INITIAL])
    for x, y in pairs:
        twin.step(x, y)
        yield twin.model.flat


METHODS = {
    granularity: online.VSGD(granularity, init_samples=INITIAL) for granularity in GRANULARITIES
} | {
    "every 3": online.VSGD("element", curvature_every=3),
    "block, every 3": online.VSGD("block", curvature_every=3),
    "floor": online.VSGD("element", curvature_floor=0.05),
    "block, floor": online.VSGD("block", curvature_floor=0.5),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", METHODS)
def test_float64_follows_the_reference(shape, name):
    method, sizes = METHODS[name], SHAPES[shape]
    l2 = 0.0 if name == "global" else 0.01
    pairs = zip(
        run(method, sizes, l2, torch.float64, 300),
        float64_reference(method, sizes, l2, 300),
        strict=True,
    )
    for ours, reference in pairs:
        np.testing.assert_allclose(ours, reference, rtol=1e-6, atol=1e-8)


def pairs_in_float32(shape, name, **settings):
    """Torch's parameters and the engine's, step by step."""
    method, sizes = METHODS[name], SHAPES[shape]
    l2 = 0.0 if name == "global" else 0.01
    ours = run(method, sizes, l2, torch.float32, STEPS_OF_FLOAT32, **settings)
    return zip(ours, engine(method, sizes, l2, STEPS_OF_FLOAT32), strict=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", METHODS)
def test_float32_follows_the_online_engine(shape, name):
    for ours, theirs in pairs_in_float32(shape, name):
        np.testing.assert_allclose(ours, theirs, **TOLERANCE_OF_FLOAT32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", METHODS)
def test_rates_that_are_off_by_half_a_percent_do_not_follow_it(shape, name):
    assert not all(
        np.allclose(ours, theirs, **TOLERANCE_OF_FLOAT32)
        for ours, theirs in pairs_in_float32(shape, name, lr=1.005)
    )
