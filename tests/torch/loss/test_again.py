"""Losses that are evaluated again: the same randomness, buffers put back, parts that add up."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pesky.errors import InputError
from tests.torch.robust import classes, mlp, robust, train, values


def test_every_evaluation_sees_the_same_dropout_and_the_generator_moves_on_once():
    torch.manual_seed(0)
    masks, last, counts = [], [], []
    dropout = nn.Dropout(0.5)
    dropout.register_forward_hook(lambda module, inputs, output: masks.append(output.detach() == 0))
    model = nn.Sequential(nn.Linear(8, 16), dropout, nn.Linear(16, 3))
    optimizer = robust(model)
    for x, y in classes(40):
        masks.clear()
        optimizer.minimize(lambda x=x, y=y: F.cross_entropy(model(x), y))
        assert all(torch.equal(mask, masks[0]) for mask in masks)
        last.append(masks[0])
        counts.append(len(masks))
    # A first pass, one for curvature, the end of the step, and in turns the average.
    assert sorted(counts[-2:]) == [3, 4]
    assert not torch.equal(last[-1], last[-2])
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), dropout, nn.Linear(16, 3))
    for x, _ in classes(40):
        plain(x)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    train(robust(model), model, classes(40))
    assert torch.equal(torch.get_rng_state(), state)


def test_augmentation_in_the_closure_is_the_same_in_every_evaluation():
    """Drawing in the closure gives the same steps as drawing before it."""
    ends = []
    for inside in (True, False):
        torch.manual_seed(0)
        model = mlp()
        optimizer = robust(model)
        for x, y in classes(80):
            if inside:
                optimizer.minimize(
                    lambda x=x, y=y, model=model: F.cross_entropy(model(x + torch.rand(32, 8)), y)
                )
            else:
                moved = x + torch.rand(32, 8)
                optimizer.minimize(lambda x=moved, y=y, model=model: F.cross_entropy(model(x), y))
        ends.append((values(model), torch.rand(1), optimizer.collective.scale))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    assert ends[0][2] == ends[1][2]


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_model_is_compiled_once_and_its_buffers_are_put_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    plain = copy.deepcopy(model)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    optimizer = robust(model, lr=0.0, curvature="finite-difference")
    train(optimizer, compiled, classes(14))
    count = len(graphs)
    train(optimizer, compiled, classes(14))
    assert len(graphs) == count
    for _ in range(2):
        for x, _ in classes(14):
            plain(x)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_two_halves_of_a_batch_add_up():
    ends = []
    for halves in (1, 2):
        torch.manual_seed(0)
        model = mlp().double()
        optimizer = robust(model)
        for x, y in classes(60):
            optimizer.zero_grad()
            for part, goal in zip(x.double().chunk(halves), y.chunk(halves), strict=True):

                def loss(part=part, goal=goal, model=model, halves=halves):
                    return F.cross_entropy(model(part), goal) / halves

                optimizer.backward(loss(), again=loss)
            optimizer.step()
        ends.append(values(model))
    torch.testing.assert_close(*ends)


def by_watch(optimizer, model, x, y):
    loss = nn.CrossEntropyLoss()
    handle = optimizer.watch(loss)
    loss(model(x), y).backward()
    handle.remove()


def test_what_began_with_second_evaluations_goes_on_with_them():
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(3))
    x, y = next(classes(1))
    with pytest.raises(InputError, match="again"):
        optimizer.backward(F.cross_entropy(model(x), y))
    by_watch(optimizer, model, x, y)
    with pytest.raises(InputError, match="again"):
        optimizer.step()


@pytest.mark.parametrize("unscale", [False, True])
def test_a_scaler_changes_nothing(unscale):
    ends = []
    for scaling in (False, True):
        torch.manual_seed(0)
        model = mlp().double()
        optimizer = robust(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaling)
        for x, y in classes(80):

            def loss(x=x, y=y, model=model):
                return F.cross_entropy(model(x.double()), y)

            optimizer.zero_grad()
            optimizer.backward(loss(), again=loss, scaler=scaler)
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        ends.append(values(model))
        assert optimizer.collective.averaged == 70
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-8)


def test_a_step_that_the_scaler_skips_leaves_everything():
    torch.manual_seed(0)
    model = mlp()
    optimizer, scaler = robust(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step, (x, y) in enumerate(classes(31)):

        def loss(x=x, y=y):
            return F.cross_entropy(model(x), y)

        before, scale = values(model), optimizer.collective.scale
        optimizer.zero_grad()
        optimizer.backward(loss(), again=loss, scaler=scaler)
        if step == 30:
            model[0].bias.grad[0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(values(model), before)
    assert optimizer.collective.scale == scale
    assert optimizer.collective.averaged == 20
    assert sum(optimizer.counters["skipped"].values()) == 1
