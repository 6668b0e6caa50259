"""The even start of the paper's dialect: entries begin with the largest v and h of their tensor."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pesky.lab.torch_table.tasks import TASKS
from pesky.torch import VSGD
from tests.real_data import needs_data

C = 7.0
NAMES = ("mean_square", "mean_curvature")


def after_one_batch(even_start):
    """A layer whose last two inputs are silent in the initial batch; its averages after it."""
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    inputs = torch.randn(8, 6)
    inputs[:, 4:] = 0
    settings = {"dialect": "paper", "init_batches": 1, "slow_start": C, "even_start": even_start}
    optimizer = VSGD(net.parameters(), **settings)
    optimizer.minimize(lambda: cross_entropy(net(inputs), torch.arange(8) % 3))
    return {name: optimizer.state[net.weight][name] for name in NAMES}


def test_silent_entries_begin_with_the_largest_of_their_tensor():
    uneven, even = after_one_batch(False), after_one_batch(True)
    for name in NAMES:
        assert torch.all(uneven[name][:, 4:] == 0)
        assert uneven[name].max() > 0
        torch.testing.assert_close(even[name], torch.full_like(even[name], uneven[name].max()))


def test_rows_of_an_embedding_are_on_their_own():
    torch.manual_seed(0)
    found = {}
    for even_start in (False, True):
        net = nn.Embedding(5, 4, sparse=True)
        with torch.no_grad():
            net.weight.copy_(torch.arange(20.0).reshape(5, 4) / 10)
        settings = {"dialect": "paper", "init_batches": 1, "slow_start": C, "even_start": even_start}
        optimizer = VSGD(net.parameters(), **settings)
        optimizer.minimize(lambda net=net: net(torch.tensor([1, 3])).pow(2).sum())
        found[even_start] = optimizer.state[net.weight]["mean_square"]
    largest = found[False].amax(1, keepdim=True)
    torch.testing.assert_close(found[True], largest.expand(5, 4))
    assert torch.all(found[True][[0, 2, 4]] == 0)


@needs_data
@pytest.mark.parametrize("seed", [0, 1])
def test_a_network_with_relu_learns_without_l2(seed):
    """Without the even start it ends at chance."""
    model, batch, loss, evaluate = TASKS["lenet"].begin(seed, None)
    optimizer = VSGD(model.parameters(), dialect="paper")
    for step in range(400):
        samples = batch(step)
        optimizer.minimize(lambda samples=samples: loss(model, samples))
    assert evaluate(model).test < 8
