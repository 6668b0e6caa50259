"""Embeddings with sparse gradients: every row begins, learns and remembers by itself."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pesky.errors import InputError
from pesky.torch import VSGD
from tests.torch.loops import FORMS, close, dialect_of, step_in_form

WORDS, CLASSES, INITIAL = 12, 3, 4


class Bag(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, CLASSES, sparse=sparse)

    def forward(self, words):
        return self.embedding(words).sum(1)


def sentences(steps, words, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = words[torch.randint(0, len(words), (8, 3), generator=generator)]
        yield chosen, chosen.sum(1) % CLASSES


def train(net, optimizer, steps, words, seed=0):
    for x, y in sentences(steps, words, seed):
        optimizer.minimize(lambda x=x, y=y: cross_entropy(net(x), y))


def optimizer_of(net, **settings):
    settings = {"init_batches": INITIAL, "slow_start": 3.0, **settings}
    return VSGD(net.parameters(), **settings)


def test_rows_that_are_always_touched_learn_as_dense_ones():
    words = torch.arange(WORDS)
    dense, sparse = Bag(False), Bag(True)
    for net in (dense, sparse):
        # An even start would take means over rows here, over the whole tensor there.
        optimizer = optimizer_of(net, dialect="paper", even_start=False)
        for _, (x, y) in enumerate(sentences(20, words)):
            everything = words.reshape(4, 3)  # so that no row is left out
            x, y = torch.cat([x, everything]), torch.cat([y, everything.sum(1) % CLASSES])
            optimizer.minimize(lambda x=x, y=y, net=net: cross_entropy(net(x), y))
    close(dense.parameters(), sparse.parameters(), rtol=1e-4, atol=1e-5)


def test_untouched_rows_keep_parameters_and_statistics():
    net = Bag(True)
    optimizer = optimizer_of(net, weight_decay=0.1)
    train(net, optimizer, 10, torch.arange(WORDS))
    state = optimizer.state[net.embedding.weight]
    before = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    weights = net.embedding.weight.detach().clone()
    train(net, optimizer, 5, torch.arange(4))
    assert torch.equal(net.embedding.weight[4:], weights[4:])
    assert not torch.equal(net.embedding.weight[:4], weights[:4])
    for name, value in before.items():
        assert torch.equal(state[name][4:], value[4:])


def test_a_row_first_seen_late_starts_fresh():
    net = Bag(True)
    optimizer = optimizer_of(net)
    train(net, optimizer, 50, torch.arange(4))
    weights = net.embedding.weight.detach().clone()
    late = torch.tensor([7])
    train(net, optimizer, INITIAL, late)
    assert torch.equal(net.embedding.weight[7], weights[7])
    state = optimizer.state[net.embedding.weight]
    assert state["initial"][7] == INITIAL
    assert torch.all(state["memory"][7] == 2)
    train(net, optimizer, 1, late)
    assert not torch.equal(net.embedding.weight[7], weights[7])


class Mixed(nn.Module):
    """Dense parameters, and rows that are used from some step on only."""

    def __init__(self):
        super().__init__()
        self.bag, self.bias, self.uses_rows = Bag(True), nn.Parameter(torch.zeros(CLASSES)), False

    def forward(self, words):
        shared = self.bias.expand(len(words), -1)
        return shared + self.bag(words) if self.uses_rows else shared


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("begin", [101, 102, 103, 104])
@pytest.mark.filterwarnings("ignore:the loss has not moved")  # there is nothing to learn before rows are
def test_rows_may_show_up_between_two_measurements(form, begin):
    net = Mixed()
    optimizer = VSGD(net.parameters(), dialect=dialect_of(form))
    before = net.bag.embedding.weight.detach().clone()
    for step, (x, y) in enumerate(sentences(begin + 20, torch.arange(4))):
        net.uses_rows = step >= begin
        step_in_form(form, optimizer, lambda x=x, y=y: cross_entropy(net(x), y))
    assert not torch.equal(net.bag.embedding.weight[:4], before[:4])


def test_l2_reaches_a_row_when_it_is_touched():
    net = Bag(True)
    optimizer = optimizer_of(net, weight_decay=0.5, init_batches=1, slow_start=1.0)
    x, y = next(sentences(1, torch.arange(2)))
    loss = cross_entropy(net(x), y)
    (gradient,) = torch.autograd.grad(loss, net.embedding.weight, retain_graph=True)
    expected = gradient.to_dense()[:2] + 0.5 * net.embedding.weight.detach()[:2]
    optimizer.backward(loss)
    optimizer.step()
    state = optimizer.state[net.embedding.weight]
    torch.testing.assert_close(state["mean_gradient"][:2], expected)
    assert torch.all(state["mean_curvature"][:2] > 0.5)
    assert torch.all(state["mean_gradient"][2:] == 0)


@pytest.mark.parametrize("granularity", ["block", "global"])
def test_shared_rates_are_refused(granularity):
    net = Bag(True)
    with pytest.raises(InputError, match="granularity must be 'element'"):
        train(net, optimizer_of(net, granularity=granularity), 1, torch.arange(4))


def test_rows_are_explained_and_resumed():
    net, other = Bag(True), Bag(True)
    optimizer, resumed = optimizer_of(net), optimizer_of(other)
    assert optimizer.explain().parameters[0].why == "no gradient yet"
    train(net, optimizer, 2, torch.arange(4))
    assert optimizer.explain().parameters[0].why == "still collecting: 2 of 4 initial batches"
    train(net, optimizer, 20, torch.arange(4))
    other.load_state_dict(net.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.state[other.embedding.weight]["initial"].dtype == torch.int32
    train(net, optimizer, 5, torch.arange(6), seed=1)
    train(other, resumed, 5, torch.arange(6), seed=1)
    assert torch.equal(net.embedding.weight, other.embedding.weight)
    assert optimizer.explain().parameters[0].rate is not None


def test_rows_go_by_the_papers_rule_beside_a_dense_layer_that_is_averaged():
    torch.manual_seed(0)
    table, head = nn.Embedding(WORDS, 8, sparse=True), nn.Linear(8, CLASSES)
    optimizer = optimizer_of(nn.Sequential(table, head))
    for words in torch.randint(0, 6, (30, 16)):
        optimizer.minimize(lambda words=words: cross_entropy(head(table(words)), words % CLASSES))
    assert "iterate" not in optimizer.state[table.weight]
    assert "iterate" in optimizer.state[head.weight]
    assert optimizer.collective.averaged == 30 - INITIAL
