"""The robust form of vSGD is the same in the online engine and in torch, at batch size 1."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pesky import length, online
from pesky.online import Learner, Network
from pesky.torch import VSGD, stepping
from pesky.torch.curvature import sources
from tests.online.robust_twin import like, random_signs
from tests.torch.networks import SHAPES, classes, flat, one_by_one, samples_of, split, torch_twin

INITIAL = 10
METHOD = online.VSGD(dialect="robust", init_samples=INITIAL)
STEPS = 80  # from the 40th on, levels are measured in every second one

every_shape = pytest.mark.parametrize("shape", SHAPES)
every_loss = pytest.mark.parametrize("kind", ["cross-entropy", "squared-error"])
every_l2 = pytest.mark.parametrize("l2", [0.0, 0.01])


def losses_of(network, kind):
    def squared_error(outputs, labels):
        targets = torch.nn.functional.one_hot(labels, network.sizes[-1])
        return (outputs - targets).square().sum() / 2

    return squared_error if kind == "squared-error" else cross_entropy


def targets_of(network, labels):
    is_classes = network.loss == "cross-entropy"
    return labels if is_classes else np.eye(network.sizes[-1], dtype=np.float32)[labels]


def signs_like(parameters, seed):
    """The engine's signs for all parameters, as tensors of their shapes."""
    blocks = [one.detach().numpy() for one in parameters]
    drawn = like(blocks, random_signs(sum(block.size for block in blocks), seed))
    return [torch.tensor(part, dtype=one.dtype) for part, one in zip(drawn, parameters, strict=True)]


@every_l2
@every_loss
@every_shape
def test_levels_are_the_root_mean_squares_of_torchs_products(shape, kind, l2):
    sizes = SHAPES[shape]
    inputs, labels = classes(sizes, 1)
    network = Network(sizes, l2=l2, loss=kind)
    model = torch_twin(network, torch.float64)
    parameters = list(model.parameters())
    ((x, y),) = one_by_one(inputs, labels, torch.float64)
    loss = losses_of(network, kind)(model(x), y)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    signs = signs_like(parameters, seed=0)
    products = torch.autograd.grad(gradients, parameters, grad_outputs=signs)
    decays = [l2 if one.dim() == 2 else 0.0 for one in parameters]
    wanted = [
        float((Hz + decay * z).square().mean().sqrt())
        for Hz, decay, z in zip(products, decays, signs, strict=True)
    ]
    learner = Learner(network, online.VSGD(dialect="robust", init_samples=1))
    learner.start(samples_of(inputs, targets_of(network, labels)), np.arange(1))
    np.testing.assert_allclose(np.sqrt(learner.state.level_square), wanted, rtol=1e-5)


@every_l2
@every_loss
@every_shape
def test_the_engine_takes_torchs_steps(shape, kind, l2, monkeypatch):
    sizes = SHAPES[shape]
    inputs, labels = classes(sizes, STEPS)
    network = Network(sizes, l2=l2, loss=kind)
    model = torch_twin(network, torch.float64)  # whose first probes are not lost in rounding
    loss = losses_of(network, kind)
    parameters = list(model.parameters())

    def signs(parameter, generator):
        (place,) = (n for n, one in enumerate(parameters) if one is parameter)
        return signs_like(parameters, generator.bit_generator.seed_seq.entropy)[place]

    monkeypatch.setattr(sources, "_signs", signs)
    monkeypatch.setattr(stepping, "_SELDOM", 1)  # the engine evaluates every loss again
    optimizer = VSGD(split(model, l2), init_batches=INITIAL, curvature="hutchinson")
    learner = Learner(network, METHOD)
    samples = samples_of(inputs, targets_of(network, labels))
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
        levels = [optimizer.state[one]["level_square"] for one in parameters]
        np.testing.assert_allclose(learner.state.level_square, levels, rtol=1e-2)
    assert optimizer.collective.averaged == STEPS
