"""Ctrl-C may come between any two lines of the library: nothing is ruined, and training goes on."""

import pytest
import torch

from pesky.torch import VSGD
from tests.torch.promise.interrupts import interrupted
from tests.torch.promise.models import MODELS, batch_for
from tests.torch.promise.watching import same_bits


def each_line_once():
    """Return a function that tells whether a line is new, and then notes it."""
    seen = set()

    def is_new(place):
        is_new.lines += place not in seen
        return place not in seen and not seen.add(place)

    is_new.lines = 0
    return is_new


@pytest.mark.parametrize("way", ["minimize", "backward", "again"])
@pytest.mark.parametrize("steps_before", [3, 30])
def test_an_interrupt_before_any_line_of_a_step_leaves_a_model_that_learns_on(way, steps_before):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = MODELS["BatchNorm"]()
    optimizer = VSGD(model.parameters(), init_batches=2)

    def step():
        x, y = batch_for(model, generator)
        if way == "minimize":
            optimizer.minimize(lambda: model(x, y))
            return
        optimizer.zero_grad()
        again = (lambda: model(x, y)) if way == "again" else None
        optimizer.backward(model(x, y), again=again)
        optimizer.step()

    def counted():
        return optimizer.counters["steps"] + sum(optimizer.counters["skipped"].values())

    for _ in range(steps_before):
        step()
    model.branch.requires_grad_(False)
    frozen = model.branch.weight.detach().clone()
    is_new, missed = each_line_once(), 0
    while missed < 8:  # not every step comes through all lines
        missed = 0 if interrupted(step, is_new) else missed + 1
        assert all(bool(torch.isfinite(one).all()) for one in model.parameters())
        assert same_bits(model.branch.weight, frozen)
        before = counted()
        step()
        assert counted() == before + 1
    assert is_new.lines > 100
