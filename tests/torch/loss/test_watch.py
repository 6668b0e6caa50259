"""Curvature inside an ordinary loss.backward()."""

import copy
import gc
import pickle
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pesky.errors import InputError
from pesky.torch import VSGD
from tests.torch.loops import DIALECTS, batches, model, parameters, same, train, train_by_backward


def watched_training(net, optimizer, loss_of, steps=20):
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hutchinson_works_inside_a_backward_pass(dialect):
    net, other = model(), model()
    train_by_backward(net, VSGD(net.parameters(), curvature="hutchinson", dialect=dialect), 15)
    criterion = nn.CrossEntropyLoss()
    optimizer = VSGD(other.parameters(), curvature="hutchinson", dialect=dialect)
    optimizer.watch(criterion)
    watched_training(other, optimizer, lambda net, x, y: criterion(net(x), y), 15)
    assert same(parameters(net), parameters(other))


@pytest.mark.parametrize("source", [None, "bbprop", "hutchinson"])
def test_a_watched_loss_given_to_backward_is_measured_once(source):
    net, other = model(), model()
    train(net, VSGD(net.parameters(), curvature=source), 15)
    criterion = nn.CrossEntropyLoss()
    optimizer = VSGD(other.parameters(), curvature=source)
    optimizer.watch(criterion)
    for x, y in batches(15):
        optimizer.minimize(lambda x=x, y=y: criterion(other(x), y))
    assert same(parameters(net), parameters(other))
    assert optimizer.counters["sources"] == {source or "finite-difference": 15}


@pytest.mark.parametrize("source", [None, "hutchinson"])
def test_a_watched_loss_that_is_part_of_another_is_measured_with_it(source):
    net = model()
    criterion = nn.CrossEntropyLoss()
    optimizer = VSGD(net.parameters(), curvature=source)
    optimizer.watch(criterion)
    for x, y in batches(5):
        optimizer.zero_grad()
        optimizer.backward(criterion(net(x), y) + net[0].weight.square().sum())
        optimizer.step()
    assert optimizer.counters["sources"] == {"hutchinson": 5}


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class NamedOutput(NamedTuple):
    loss: Tensor
    logits: Tensor


PACKED = {
    "object": (lambda *values: Output(*values), lambda output: output.loss),
    "dict": (lambda loss, logits: {"loss": loss, "logits": logits}, lambda output: output["loss"]),
    "tuple": (lambda *values: values, lambda output: output[0]),
    "list": (lambda *values: list(values), lambda output: output[0]),
    "named tuple": (lambda *values: NamedOutput(*values), lambda output: output.loss),
}


class WithLoss(nn.Module):
    def __init__(self, pack):
        super().__init__()
        self.net, self.pack = model(), pack

    def forward(self, x, y):
        logits = self.net(x)
        return self.pack(cross_entropy(logits, y), logits)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", PACKED)
def test_a_loss_inside_a_models_output_is_found(kind, dialect):
    pack, unpack = PACKED[kind]
    net = model()
    optimizer = VSGD(net.parameters(), dialect=dialect)
    for x, y in batches(20):
        optimizer.zero_grad()
        optimizer.backward(cross_entropy(net(x), y), again=lambda x=x, y=y: cross_entropy(net(x), y))
        optimizer.step()
    other = WithLoss(pack)
    optimizer = VSGD(other.parameters(), dialect=dialect)
    optimizer.watch(other)
    watched_training(other, optimizer, lambda net, x, y: unpack(net(x, y)))
    assert same(parameters(net), parameters(other))


def test_what_is_done_to_the_loss_afterwards_scales_the_curvature():
    criterion = nn.CrossEntropyLoss()
    found = []
    for factor in (1.0, 0.25):
        net = model()
        optimizer = VSGD(net.parameters())
        optimizer.watch(criterion)
        x, y = next(batches(1))
        (criterion(net(x), y) * factor).backward()
        found.append(optimizer._pending.values[net[0].weight] / factor)
    torch.testing.assert_close(*found)


def test_a_handle_ends_it():
    net, criterion = model(), nn.CrossEntropyLoss()
    optimizer = VSGD(net.parameters())
    optimizer.watch(criterion).remove()
    with pytest.raises(InputError, match="watch"):
        watched_training(net, optimizer, lambda net, x, y: criterion(net(x), y), 1)


def test_a_function_is_refused():
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        VSGD(model().parameters()).watch(cross_entropy)


def test_a_module_without_a_loss_is_told():
    net = model()
    optimizer = VSGD(net.parameters())
    optimizer.watch(net)
    net(torch.zeros(2, 10)).square().mean().backward()
    with pytest.raises(InputError, match="watched Sequential has produced no loss"):
        optimizer.step()


def test_parameters_that_no_watched_loss_reaches_are_told_once():
    net, criterion = model(), nn.CrossEntropyLoss()
    penalised = nn.Parameter(torch.ones(3))
    optimizer = VSGD([*net.parameters(), penalised])
    optimizer.watch(criterion)

    def loss_of(net, x, y):
        return criterion(net(x), y) + penalised.square().sum()

    with pytest.warns(UserWarning, match="1 of 5 parameters"):
        watched_training(net, optimizer, loss_of, 1)
    watched_training(net, optimizer, loss_of, 15)
    assert torch.all(penalised == 1)


def test_evaluation_is_left_alone():
    net, criterion = model(), nn.CrossEntropyLoss()
    optimizer = VSGD(net.parameters())
    optimizer.watch(criterion)
    with torch.no_grad():
        x, y = next(batches(1))
        loss = criterion(net(x), y)
    assert not loss.requires_grad
    assert optimizer._pending.passes == 0


def test_a_watched_module_can_be_copied_and_pickled():
    net = WithLoss(PACKED["dict"][0])
    optimizer = VSGD(net.parameters())
    optimizer.watch(net)
    net.pack = dict  # a lambda cannot be pickled, whoever watches
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        other.pack = PACKED["dict"][0]
        x, y = next(batches(1))
        other(x, y)["loss"].backward()
        assert optimizer._pending.passes == 0


def count_tensors():
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("by", ["minimize", "watch", "forward only", "finite-difference", "hutchinson"])
def test_steps_leave_nothing_behind(by):
    net, criterion = model(), nn.CrossEntropyLoss()
    source = by if by in ("finite-difference", "hutchinson") else "bbprop"
    optimizer = VSGD(net.parameters(), curvature=source)
    if by in ("watch", "forward only"):
        optimizer.watch(criterion)

    def run(steps):
        for x, y in batches(steps):
            if by == "watch":
                optimizer.zero_grad()
                criterion(net(x), y).backward()
                optimizer.step()
            elif by == "forward only":
                criterion(net(x), y)
            else:
                optimizer.minimize(lambda x=x, y=y: cross_entropy(net(x), y))

    run(20)
    before = count_tensors()
    run(300)
    assert count_tensors() <= before
