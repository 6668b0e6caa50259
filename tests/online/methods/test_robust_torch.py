"""The robust form of vSGD is the same in the online engine and in torch, at batch size 1."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pesky import length, online
from pesky.online import Learner, Network
from pesky.torch import VSGD
from tests.torch.networks import SHAPES, classes, flat, one_by_one, samples_of, split, torch_twin

INITIAL = 10
METHOD = online.VSGD(dialect="robust", init_samples=INITIAL)
STEPS = 80


def losses_of(network, kind):
    def squared_error(outputs, labels):
        targets = torch.nn.functional.one_hot(labels, network.sizes[-1])
        return (outputs - targets).square().sum() / 2

    return squared_error if kind == "squared-error" else cross_entropy


@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("kind", ["cross-entropy", "squared-error"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_engine_takes_torchs_steps(shape, kind, l2):
    sizes = SHAPES[shape]
    inputs, labels = classes(sizes, STEPS)
    network = Network(sizes, l2=l2, loss=kind)
    model = torch_twin(network, torch.float64)  # whose first probes are not lost in rounding
    loss = losses_of(network, kind)
    optimizer = VSGD(split(model, l2), init_batches=INITIAL, curvature_every=1)  # as the engine
    learner = Learner(network, METHOD)
    targets = labels if kind == "cross-entropy" else np.eye(sizes[-1], dtype=np.float32)[labels]
    samples = samples_of(inputs, targets)
    learner.start(samples, np.arange(INITIAL))
    for x, y in one_by_one(inputs[:INITIAL], labels[:INITIAL], torch.float64):
        optimizer.minimize(lambda x=x, y=y: loss(model(x), y))
    for n, (x, y) in enumerate(one_by_one(inputs, labels, torch.float64)):
        optimizer.minimize(lambda x=x, y=y: loss(model(x), y))
        learner.advance(samples, np.array([n]))
        np.testing.assert_allclose(network.theta, flat(model), rtol=1e-3, atol=1e-3)
        known = length.record_of(learner.state.numbers)
        assert known.scale == pytest.approx(optimizer.collective.scale, rel=1e-3)
        assert known.caution == pytest.approx(optimizer.collective.caution, rel=1e-3)
    assert optimizer.collective.averaged == STEPS
