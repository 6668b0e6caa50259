"""The rivals follow the online engine, step by step, at batch size 1."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pesky import online
from pesky.errors import InputError
from pesky.online import Learner, Network
from pesky.torch import SMD, Almeida, Amari
from tests.online.reference import twin_of
from tests.torch.loops import batches, model, parameters, same
from tests.torch.networks import SHAPES, classes, flat, one_by_one, samples_of, split, torch_twin

STEPS, L2 = 150, 0.01
PAIRS = {
    "amari": (online.Amari(0.001, tau=1000), Amari, {"lr": 0.001, "tau": 1000}),
    "almeida": (online.Almeida(0.01, tau=50), Almeida, {"lr": 0.01, "tau": 50}),
    "almeida, product": (
        online.Almeida(0.01, tau=50, reading="product"),
        Almeida,
        {"lr": 0.01, "tau": 50, "reading": "product"},
    ),
    "almeida, multiplicative": (
        online.Almeida(0.01, tau=50, reading="multiplicative"),
        Almeida,
        {"lr": 0.01, "tau": 50, "reading": "multiplicative"},
    ),
    "smd": (online.SMD(0.02, mu=0.01, tau=50), SMD, {"lr": 0.02, "mu": 0.01, "tau": 50}),
}


def steps_of(kind, settings, sizes, dtype):
    network = Network(sizes, l2=L2 if kind is not SMD else 0.0)
    net = torch_twin(network, dtype)
    groups = net.parameters() if kind is SMD else split(net, L2)
    optimizer = kind(groups, **settings)
    for x, y in one_by_one(*classes(sizes, STEPS), dtype):
        optimizer.zero_grad()
        loss = cross_entropy(net(x), y)
        optimizer.backward(loss) if kind is SMD else loss.backward()
        optimizer.step()
        yield flat(net)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PAIRS)
def test_they_follow_engine_and_reference(name, shape):
    method, kind, settings = PAIRS[name]
    sizes = SHAPES[shape]
    inputs, labels = classes(sizes, STEPS)
    network = Network(sizes, l2=L2 if kind is not SMD else 0.0)
    twin = twin_of(method, network)
    twin.begin(list(zip(inputs[:10], labels[:10], strict=True)))
    learner, samples = Learner(network, method), samples_of(inputs, labels)
    learner.start(samples, np.arange(10))
    single = steps_of(kind, settings, sizes, torch.float32)
    double = steps_of(kind, settings, sizes, torch.float64)
    for step, (ours, exact) in enumerate(zip(single, double, strict=True)):
        learner.advance(samples, np.array([step]))
        twin.step(inputs[step], labels[step])
        np.testing.assert_allclose(exact, twin.model.flat, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(ours, learner.network.theta, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", PAIRS)
def test_a_checkpoint_goes_on_bit_for_bit(name):
    _, kind, settings = PAIRS[name]

    def train(net, optimizer, seed):
        for x, y in batches(10, seed=seed):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = cross_entropy(net(x), y)
                optimizer.backward(loss) if kind is SMD else loss.backward()
                return loss

            optimizer.step(closure)

    net = model()
    optimizer = kind(net.parameters(), **settings)
    train(net, optimizer, 1)
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
    train(net, optimizer, 2)
    other = model()
    other.load_state_dict(weights)
    resumed = kind(other.parameters(), **settings)
    resumed.load_state_dict(state)
    train(other, resumed, 2)
    assert same(parameters(net), parameters(other))


def test_smd_without_its_product_tells_how_to_get_it():
    net = model()
    optimizer = SMD(net.parameters(), **PAIRS["smd"][2])
    for x, y in batches(2):
        optimizer.minimize(lambda x=x, y=y: cross_entropy(net(x), y))
    x, y = next(batches(1))
    cross_entropy(net(x), y).backward()
    with pytest.raises(InputError, match=r"optimizer\.backward"):
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Amari, {"lr": 0, "tau": 10}, "lr"),
        (Amari, {"lr": 1, "tau": 0.5}, "tau"),
        (Almeida, {"lr": 1, "tau": 2, "reading": "own"}, "reading"),
        (SMD, {"lr": 1, "tau": 2, "mu": -1}, "mu"),
    ],
)
def test_bad_settings_are_refused(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(model().parameters(), **settings)
