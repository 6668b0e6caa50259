"""A model that becomes narrower: averages that its new type cannot hold begin anew."""

import pytest
import torch
from torch.nn.functional import mse_loss

from pesky.torch import VSGD
from tests.torch.loops import FORMS, dialect_of, step_in_form

HUGE = 1e25  # whose gradients' squares are beyond float32, and not beyond float64


def loss_on(net, size):
    kind = net.weight.dtype
    x = torch.tensor([[1.0, size], [0.5, 1.0]], dtype=kind)
    return lambda: mse_loss(net(x), torch.zeros(2, 1, dtype=kind))


def trained_on_huge_inputs(form, granularity):
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1).double()
    optimizer = VSGD(net.parameters(), dialect=dialect_of(form), granularity=granularity, init_batches=2)
    for _ in range(4):
        step_in_form("measuring" if form == "paper" else form, optimizer, loss_on(net, HUGE))
    return net, optimizer


def numbers_of(value):
    """Yield every number that is kept."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers_of(one)
    elif isinstance(value, torch.Tensor):
        yield from value.flatten().tolist()
    elif isinstance(value, float):
        yield value


def go_on(form, net, optimizer):
    """Train on: everything stays finite, and no robust form gets worse."""
    losses = []
    for _ in range(60):
        step_in_form("measuring" if form == "paper" else form, optimizer, loss_on(net, 1.0))
        losses.append(loss_on(net, 1.0)().item())
        kept = torch.tensor(list(numbers_of(optimizer.state_dict()["state"])), dtype=torch.float64)
        assert kept.isfinite().all()
        assert all(one.isfinite().all() for one in net.parameters())
    assert form == "paper" or losses[-1] <= losses[0]


@pytest.mark.filterwarnings("ignore")  # of steps that such inputs make impossible
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
@pytest.mark.parametrize("form", FORMS)
def test_a_cast_to_a_narrower_type_keeps_averages_finite(form, granularity):
    net, optimizer = trained_on_huge_inputs(form, granularity)
    assert max(map(abs, numbers_of(optimizer.state_dict()["state"]))) > torch.finfo(torch.float32).max
    net.float()
    go_on(form, net, optimizer)


@pytest.mark.filterwarnings("ignore")  # of steps that such inputs make impossible
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_of_a_wider_type_keeps_averages_finite(form, granularity):
    net, optimizer = trained_on_huge_inputs(form, granularity)
    narrow = torch.nn.Linear(2, 1)
    narrow.load_state_dict(net.state_dict())
    resumed = VSGD(
        narrow.parameters(), dialect=dialect_of(form), granularity=granularity, init_batches=2
    )
    resumed.load_state_dict(optimizer.state_dict())
    go_on(form, narrow, resumed)
