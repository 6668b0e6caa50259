"""The measuring form: it trains small networks with nothing set, and survives accidents."""

import gc
import math
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pesky.torch import VSGD
from tests.torch.curvature.models import Characters
from tests.torch.robust import classes, mlp, robust, train, values


def test_a_regression_learns():
    torch.manual_seed(0)
    model, teacher = mlp(outputs=1), mlp(outputs=1)
    batches = [(x, teacher(x).detach()) for x in torch.randn(400, 32, 8)]
    train(robust(model), model, batches, F.mse_loss)
    x = torch.randn(1000, 8)
    assert F.mse_loss(model(x), teacher(x)) < 0.05 * teacher(x).var()


def test_a_network_with_batch_norm_learns_and_is_as_good_in_evaluation():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    )
    patterns = torch.randn(4, 1, 8, 8)

    def batch():
        y = torch.randint(0, 4, (32,))
        return patterns[y] + torch.randn(32, 1, 8, 8), y

    train(robust(model), model, (batch() for _ in range(200)))
    model.eval()
    x, y = batch()
    assert F.cross_entropy(model(x), y) < 0.1


def test_a_transformer_learns():
    torch.manual_seed(0)
    model = Characters()
    nn.init.normal_(model.embedding.weight, std=0.25)  # 1 would saturate the softmax
    step = torch.arange(12)

    def batch():
        start, stride = torch.randint(0, 20, (16, 1)), torch.randint(1, 3, (16, 1))
        x = (start + stride * step) % 20
        return x, (start + stride * (step + 1)) % 20

    def loss_of(logits, y):
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    train(robust(model), model, (batch() for _ in range(250)), loss_of)
    x, y = batch()
    assert loss_of(model(x), y) < 1.0  # log 20 is 3


def test_a_rotated_noisy_quadratic_ends_near_its_optimum():
    ends = []
    for seed in range(7):
        torch.manual_seed(seed)
        rotation, _ = torch.linalg.qr(torch.randn(20, 20))
        eigenvalues = torch.cat([torch.rand(18), 30 + 30 * torch.rand(2)])
        hessian = rotation * eigenvalues @ rotation.T
        theta = nn.Parameter(rotation @ torch.randn(20) * 3)

        def excess(at, hessian=hessian):
            return float(at @ hessian @ at / 2)

        def curvature(loss, ones, hessian=hessian):
            return [hessian.diagonal()]

        optimizer = VSGD([theta], dialect="robust", curvature=curvature)
        start = excess(theta.detach())
        for _ in range(1500):
            noise = 0.3 * torch.randn(20)
            optimizer.minimize(lambda: (theta - noise) @ hessian @ (theta - noise) / 2)  # noqa: B023
        end, of_one_sample = excess(theta.detach()), 0.09 * float(eigenvalues.sum()) / 2
        ends.append((end / start, end / of_one_sample))
    of_start, of_sample = map(median, zip(*ends, strict=True))
    assert of_start < 0.03
    assert of_sample < 0.1


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_the_units_of_the_loss_do_not_matter(factor):
    ends = []
    for unit in (1.0, factor):
        torch.manual_seed(0)
        model = mlp()
        optimizer = robust(model)
        train(optimizer, model, classes(80), factor=unit)
        ends.append((values(model), optimizer.collective.scale))
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-4, atol=1e-5)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-3)


def test_weight_decay_is_part_of_the_loss_that_sets_the_scale():
    """Decay by the optimizer and by the loss are the same thing."""
    ends = []
    for inside in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(8, 3).double()
        optimizer = robust(model, weight_decay=0.0 if inside else 0.1)
        for x, y in classes(60):

            def loss(x=x, y=y, model=model, inside=inside):
                penalty = sum(one.square().sum() for one in model.parameters()) / 2
                return F.cross_entropy(model(x.double()), y) + inside * 0.1 * penalty

            optimizer.minimize(loss)
        ends.append(values(model))
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e30, 1e6])
def test_a_poisoned_batch_does_no_harm_and_is_counted(poison):
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(150), F.cross_entropy)
    x, y = next(classes(1))
    for _ in range(3):
        optimizer.minimize(lambda: F.cross_entropy(model(x), y) * poison)
    assert values(model).isfinite().all()
    if poison != 1e6:
        assert sum(optimizer.counters["skipped"].values()) == 3
    if not math.isfinite(poison):
        assert optimizer.collective.restored == 0  # it was no fault of a step
    train(optimizer, model, classes(150), F.cross_entropy)
    # What only looks like a loss is learnt from, and averages forget it slowly; knowing nothing is 1.1.
    assert F.cross_entropy(model(x), y) < (1.0 if poison == 1e6 else 0.5)


def test_a_step_into_a_wall_is_shortened():
    torch.manual_seed(0)
    theta = nn.Parameter(torch.ones(1))
    optimizer = VSGD([theta], dialect="robust", curvature=lambda loss, ones: [torch.ones(1)])
    for centre in torch.randn(60, 1):
        optimizer.minimize(lambda c=centre: (theta - c).square().sum() / 2)
    here = optimizer.state[theta]["iterate"].clone()

    def walled():
        return (theta - 3).square().sum() / 2 + 1e6 * F.relu(abs(theta - here) - 1e-5).sum()

    optimizer.minimize(walled)
    assert optimizer.collective.shortened == 1
    assert abs(optimizer.state[theta]["iterate"] - here) < 1e-3


def test_memory_does_not_grow():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    counts = []
    for _ in range(2):
        train(optimizer, model, classes(150))
        gc.collect()
        counts.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
    assert counts[0] == counts[1]
    assert len(optimizer.collective.history) <= 64


def test_explain_tells_scale_caution_and_accidents():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    assert optimizer.explain().collective is None
    train(optimizer, model, classes(60))
    told = optimizer.explain().as_dict()["collective"]
    assert told["scale"] == optimizer.collective.scale
    assert told["caution"] == optimizer.collective.caution
    assert told["shortened"] == told["restored"] == 0
    assert len(told["history"]) > 10
    assert "scale" in str(optimizer.explain())
    assert all(rate > 0 for rate in optimizer.rates().values())
