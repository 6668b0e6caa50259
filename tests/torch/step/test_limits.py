"""At the edge of what a type can hold: nothing that is not finite becomes a scale or a parameter."""

import math
from dataclasses import astuple

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pesky import length
from pesky.length import Length
from pesky.torch import VSGD
from pesky.torch.passes.extent import set_finite
from pesky.torch.passes.fused import Move, move
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import Direction
from pesky.torch.step.measuring import _Step
from tests.torch.loops import FORMS, dialect_of, model, parameters, step_in_form, train, train_in_form


def known(scale, slope=1.0):
    found = Length(scale=scale)
    length.add_slope(found, slope)
    return found


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_is_never_set(scale):
    found = known(0.5)
    length.set_scale(found, scale)
    assert found.scale == 0.5


def test_the_scale_has_a_floor_however_often_steps_are_shortened_or_undone():
    found = known(1.0)
    for _ in range(200):
        scale = length.shorter_scale(math.inf, 1.0, found.scale)
        length.take_measurement(found, math.inf, 1.0, scale, 0.0)
        found.undoable = 1.0
        length.restore(found)
        length.follow(found, 1.0, -1e300)
        length.adapt(found)
    assert found.scale == length.SHORTEST
    assert all(map(math.isfinite, astuple(found)))


def test_at_the_floor_a_step_that_is_still_too_long_is_not_taken():
    found = known(length.SHORTEST)
    assert not length.take_measurement(found, math.inf, 1.0, length.SHORTEST, 0.0)
    assert length.take_measurement(found, 0.0, 1.0, length.SHORTEST, 0.0)


class Line:
    """A loss along a step, rounded as float32 does; what a step asks of its losses and places."""

    rounding = torch.finfo(torch.float32).eps

    def __init__(self, loss):
        self.first = float(torch.tensor(loss(0.0)))
        self.tried = []
        self._loss = loss

    def attempt(self, parameters, scale):
        self.tried.append(scale)

    def again(self):
        return float(torch.tensor(self._loss(self.tried[-1])))

    def first_scale(self, slope):
        return _Step(Direction([], slope), self, Collective(), self)._first_scale()


def test_a_first_probe_too_short_to_be_seen_goes_up():
    """Slope 1e-4 on a loss of 1000: a step of 1e-3 changes nothing that float32 can tell."""
    line = Line(lambda scale: 1000 - 1e-4 * scale + 0.5e-4 * scale**2)
    scale = line.first_scale(1e-4)
    assert min(line.tried) == length.PROBE
    assert scale >= 0.1


def test_a_first_probe_that_is_too_long_goes_down():
    line = Line(lambda scale: 1.0 - scale + 0.5e5 * scale**2)
    scale = line.first_scale(1.0)
    assert 0.5e-5 < scale < 2e-5


def test_a_first_probe_among_infinities_goes_down():
    line = Line(lambda scale: 1.0 - scale if scale < 1e-6 else math.inf)
    scale = line.first_scale(1.0)
    assert length.SHORTEST <= scale <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shows_average", [True, False])
def test_entries_whose_move_is_not_finite_stay(dtype, shows_average):
    largest = torch.finfo(dtype).max
    places = [torch.tensor(row, dtype=dtype) for row in ([1.0, 2.0, 3.0],) * 4]
    theta, iterate, direction, average = places
    direction.copy_(torch.tensor([-largest, math.nan, 1.0], dtype=dtype))
    average.copy_(torch.tensor([1.0, 1.0, -largest], dtype=dtype))
    assert move([Move(theta, iterate, direction, average, 10.0)], 0.5, shows_average)
    assert iterate.tolist() == [1.0, 2.0, -7.0]
    assert average.tolist() == [1.0, 1.5, -largest / 2]
    assert theta.tolist() == (average if shows_average else iterate).tolist()
    direction.fill_(1.0)
    assert not move([Move(theta, iterate, direction, average, 1.0)], 0.5, shows_average)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_parameter_takes_only_what_its_type_can_hold(dtype):
    parameter = nn.Parameter(torch.ones(3, dtype=dtype))
    assert set_finite(parameter, torch.tensor([2.0, 1e300, math.nan], dtype=torch.float64))
    assert parameter.tolist() == [2.0, 1.0, 1.0]
    assert not set_finite(parameter, torch.tensor([3.0, 4.0, 5.0]))
    assert parameter.tolist() == [3.0, 4.0, 5.0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.filterwarnings("ignore")  # what is said is for others
def test_a_loss_without_a_bottom_leaves_parameters_finite(form, dtype):
    theta = nn.Parameter(torch.ones(40, dtype=dtype))
    optimizer = VSGD([theta], dialect=dialect_of(form), slow_start=1, lr=1e6, init_batches=1)
    for _ in range(60):
        step_in_form(form, optimizer, lambda: -(theta.float() ** 2).sum() * 1e-3)
        assert theta.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_averages_follow_a_model_that_is_cast(form, granularity):
    """In float64 and back, it goes on as it would have: float32 numbers are float64 ones."""
    nets = [model(), model()]
    optimizers = [
        VSGD(net.parameters(), dialect=dialect_of(form), granularity=granularity) for net in nets
    ]
    for net, optimizer in zip(nets, optimizers, strict=True):
        train_in_form(form, net, optimizer, 30)
    cast, optimizer = nets[1], optimizers[1]
    cast.double()
    for state in optimizer.state.values():
        assert state["mean_gradient"].dtype == torch.float32
    step_in_form(
        form, optimizer, lambda: mse_loss(cast(torch.ones(2, 10).double()), torch.zeros(2, 3).double())
    )
    assert {state["mean_gradient"].dtype for state in optimizer.state.values()} == {torch.float64}
    assert all(one.dtype == torch.float64 and one.isfinite().all() for one in parameters(cast))


def test_a_parameter_of_another_shape_begins_anew():
    net = model()
    optimizer = VSGD(net.parameters())
    train(net, optimizer, 30)
    net[2].weight.data = torch.randn(3, 16)[:, :16].repeat(2, 1)[:3].clone()
    net[2].bias.data = torch.zeros(3)
    net[0].weight.data = torch.randn(16, 12)
    x = torch.randn(8, 12)
    optimizer.minimize(lambda: net(x).square().mean())
    assert optimizer.state[net[0].weight]["initial"] == 1
    assert optimizer.state[net[2].weight]["initial"] == optimizer.init_batches
