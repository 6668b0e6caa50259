"""What the optimizer says of itself."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pesky.torch import VSGD
from tests.torch.loops import FORMS, dialect_of, model, train, train_in_form


def whys(optimizer):
    return [row.why for row in optimizer.explain().parameters]


def test_names_numbers_and_words():
    net = model()
    optimizer = VSGD(net.named_parameters())
    assert whys(optimizer) == ["no gradient yet"] * 4
    train(net, optimizer, 3)
    assert whys(optimizer) == ["still collecting: 3 of 10 initial batches"] * 4
    train(net, optimizer, 40)
    explanation = optimizer.explain()
    assert [row.name for row in explanation.parameters] == [name for name, _ in net.named_parameters()]
    assert explanation.steps == 43
    assert explanation.curvature_sources == {"finite-difference": 43}
    for row in explanation.parameters:
        for low, middle, high in (row.rate, row.memory, row.signal, row.curvature):
            assert 0 <= low <= middle <= high
        assert row.signal[2] <= 1
        assert row.memory[0] >= 2
    text = str(explanation)
    assert "0.weight" in text
    assert "finite-difference (43)" in text
    assert json.loads(json.dumps(explanation.as_dict()))["parameters"][0]["name"] == "0.weight"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_rates_are_those_of_the_last_step(granularity, form):
    net = model()
    settings = {"granularity": granularity, "dialect": dialect_of(form)}
    optimizer = VSGD(net.named_parameters(), lr=0.5, **settings)
    train_in_form(form, net, optimizer, 30)
    weight = net[0].weight

    def place():
        return optimizer.state[weight].get("iterate", weight).detach().double()

    before = place().clone()
    train_in_form(form, net, optimizer, 1, seed=2)
    moved = (before - place()) / weight.grad
    assert not moved.isnan().any()
    # What is usual in a tensor has changed with the step, and is what the next one will see.
    assert optimizer.rates()["0.weight"] == pytest.approx(moved.mean().item(), rel=3e-2)


def test_parameters_without_names_are_told_by_shape():
    optimizer = VSGD(model().parameters())
    assert list(optimizer.rates()) == ["0 (16x10)", "1 (16)", "2 (3x16)", "3 (3)"]


def on_a_bowl(steps, noise, h=1.0, start=1.0, **settings):
    """Minimise h/2 (theta - sample)^2 in four dimensions."""
    theta = nn.Parameter(torch.full((4,), start))
    optimizer = VSGD([theta], **settings)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        target = noise * torch.randn(4, generator=generator)
        optimizer.minimize(lambda target=target: h / 2 * mse_loss(theta, target, reduction="sum"))
    return optimizer


@pytest.mark.filterwarnings("ignore:the loss has not moved")
def test_noise_is_named():
    assert whys(on_a_bowl(3000, noise=1.0, start=0.0, slow_start=1)) == ["held down by noise"]


def test_curvature_is_named():
    assert whys(on_a_bowl(15, noise=0.0, h=1e6, slow_start=1)) == ["held down by curvature"]


def test_slow_start_is_named():
    slow = on_a_bowl(15, noise=0.0, slow_start=1e4, dialect="paper")
    assert whys(slow) == ["held down by slow start"]


def test_missing_gradient_and_curvature_are_named():
    assert whys(on_a_bowl(15, noise=0.0, start=0.0)) == ["no gradient: all are zero"]
    theta = nn.Parameter(torch.ones(2))
    optimizer = VSGD([theta], dialect="paper", curvature=lambda loss, params: [torch.zeros(2)])
    for _ in range(15):
        optimizer.minimize(lambda: theta.sum())
    assert whys(optimizer) == ["no curvature: the rate is zero"]


def test_a_loss_of_zero_leaves_nothing_to_tell_curvature_by():
    theta = nn.Parameter(torch.zeros(2))
    optimizer = VSGD([theta])
    for _ in range(15):
        optimizer.minimize(lambda: theta[0] - theta[1])
    assert whys(optimizer) == ["no curvature: the rate is zero"]
    assert torch.equal(theta, torch.zeros(2))


@pytest.mark.parametrize("form", ["measuring", "following"])
@pytest.mark.parametrize("granularity", ["block", "global"])
def test_where_a_rate_is_shared_the_curvature_is_the_level(form, granularity):
    net = model()
    optimizer = VSGD(net.named_parameters(), granularity=granularity)
    train_in_form(form, net, optimizer, 30)
    for row, one in zip(optimizer.explain().parameters, net.parameters(), strict=True):
        level = optimizer.state[one]["level_square"] ** 0.5
        assert row.curvature == pytest.approx((level,) * 3)


@pytest.mark.parametrize("form", ["measuring", "following"])
def test_curvatures_of_entries_are_the_level_and_more_where_gradients_are_large(form):
    net = model()
    optimizer = VSGD(net.named_parameters())
    train_in_form(form, net, optimizer, 30)
    for row, one in zip(optimizer.explain().parameters, net.parameters(), strict=True):
        state = optimizer.state[one]
        level, v = state["level_square"] ** 0.5, state["mean_square"].double()
        expected = level * (v / v.mean()).sqrt().clamp(min=1).flatten()
        quartiles = torch.quantile(expected, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        assert row.curvature == pytest.approx(tuple(quartiles.tolist()), rel=1e-4)
        assert row.curvature[0] >= level * (1 - 1e-4)


@pytest.mark.subprocess
def test_without_torch_the_extra_is_named():
    script = "import sys; sys.modules['torch'] = None; import pesky.torch"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'pesky[torch]'" in run.stderr
