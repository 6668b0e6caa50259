"""Losses of all kinds: on a linear model bbprop is the exact diagonal of the Hessian."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.errors import InputError
from pesky.torch.curvature import bbprop, curvature_of

torch.manual_seed(4)
X = torch.randn(8, 5, dtype=torch.float64)
LABELS = torch.randint(0, 3, (8,))
TARGETS = torch.randn(8, 3, dtype=torch.float64)
SOFT = torch.rand(8, 3, dtype=torch.float64).softmax(1)
WEIGHTS = torch.tensor([0.2, 1.0, 2.0], dtype=torch.float64)

Loss = Callable[[Tensor], Tensor]


def squared(difference: Tensor) -> Tensor:
    return difference * difference


EXACT: dict[str, Loss] = {
    "cross-entropy": lambda z: F.cross_entropy(z, LABELS),
    "cross-entropy, sum": lambda z: F.cross_entropy(z, LABELS, reduction="sum"),
    "class weights": lambda z: F.cross_entropy(z, LABELS, weight=WEIGHTS),
    "ignored labels": lambda z: (
        F.cross_entropy(z, LABELS.clone().fill_(2), ignore_index=1)
        + F.cross_entropy(z, LABELS, ignore_index=2)
    ),
    "label smoothing": lambda z: F.cross_entropy(z, LABELS, label_smoothing=0.1, weight=WEIGHTS),
    "soft targets": lambda z: F.cross_entropy(z, SOFT),
    "log-softmax and NLL": lambda z: F.nll_loss(z.log_softmax(1), LABELS),
    "Kullback-Leibler": lambda z: F.kl_div(z.log_softmax(1), SOFT, reduction="batchmean"),
    "log of a softmax": lambda z: -z.softmax(1).gather(1, LABELS[:, None]).log().mean(),
    "log of a softmax plus epsilon": lambda z: -((z.softmax(1) + 1e-6).log() * SOFT).sum(1).mean(),
    "log of a clamped softmax": lambda z: -(z.softmax(1).clamp(1e-9).log() * SOFT).sum(1).mean(),
    "logsumexp": lambda z: (z.logsumexp(1) - z.gather(1, LABELS[:, None])[:, 0]).mean(),
    "log sum exp by hand": lambda z: (z.exp().sum(1).log() - z[:, 0]).mean(),
    "mean square": lambda z: F.mse_loss(z, TARGETS),
    "sum of squares": lambda z: F.mse_loss(z, TARGETS, reduction="sum") / 7,
    "squares by hand": lambda z: ((z - TARGETS) ** 2).mean(),
    "products by hand": lambda z: squared(z - TARGETS).mean(),
    "logistic": lambda z: F.binary_cross_entropy_with_logits(z, SOFT, pos_weight=WEIGHTS),
    "logistic through a sigmoid": lambda z: F.binary_cross_entropy(z.sigmoid(), SOFT),
    "log of a sigmoid": lambda z: -z.sigmoid().log().mean(),
    "logsigmoid": lambda z: -F.logsigmoid(z).mean(),
    "softplus": lambda z: F.softplus(-z).mean(),
    "Huber": lambda z: F.huber_loss(z, TARGETS, delta=0.7),
    "smooth L1": lambda z: F.smooth_l1_loss(z, TARGETS, beta=0.7),
    "soft margin": lambda z: F.soft_margin_loss(z, TARGETS.sign()),
    "Poisson": lambda z: F.poisson_nll_loss(z, SOFT),
    "squared hinge": lambda z: F.relu(1 - z * TARGETS.sign()).square().mean(),
    "log cosh": lambda z: (z - TARGETS).cosh().log().mean(),
    "Charbonnier": lambda z: ((z - TARGETS) ** 2 + 0.01).sqrt().mean(),
    "sum of two losses": lambda z: F.cross_entropy(z, LABELS) + 0.3 * F.mse_loss(z, TARGETS),
    "scaled loss": lambda z: F.cross_entropy(z, LABELS) * 65536.0,
    "scaled by a tensor": lambda z: F.cross_entropy(z, LABELS) * torch.tensor(0.25),
    "weights of samples": lambda z: (F.cross_entropy(z, LABELS, reduction="none") * SOFT[:, 0]).sum(),
    "product with one-hot targets": lambda z: -(z.log_softmax(1) @ WEIGHTS).mean(),
}


def model_and_loss(loss: Loss) -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(5)
    model = nn.Linear(5, 3).double()
    return model, loss(model(X))


def hessian_diagonal(loss: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Differentiate twice, one parameter after another."""
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    diagonals = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        entries = []
        for place in range(parameter.numel()):
            (row,) = torch.autograd.grad(gradient.flatten()[place], [parameter], retain_graph=True)
            entries.append(row.flatten()[place])
        diagonals.append(torch.stack(entries).view_as(parameter))
    return diagonals


@pytest.mark.parametrize("name", EXACT)
def test_linear_model_has_the_exact_diagonal(name: str) -> None:
    model, loss = model_and_loss(EXACT[name])
    parameters = list(model.parameters())
    found = bbprop(loss, parameters, strict=True)
    assert curvature_of(loss, parameters).curved
    for one, exact in zip(found, hessian_diagonal(loss, parameters), strict=True):
        torch.testing.assert_close(one, exact.abs().detach(), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(
    "loss",
    [
        lambda z: F.l1_loss(z, TARGETS),
        lambda z: (z - TARGETS).abs().sum(),
        lambda z: F.relu(1 - z * TARGETS.sign()).mean(),
        lambda z: F.multi_margin_loss(z, LABELS),
        lambda z: z.sum(),
        lambda z: F.l1_loss(z.sigmoid(), TARGETS),
    ],
    ids=["L1", "L1 by hand", "hinge", "multi-class hinge", "linear", "L1 of a sigmoid"],
)
def test_loss_without_curvature_is_told_apart(loss: Loss) -> None:
    model, value = model_and_loss(loss)
    found = curvature_of(value, list(model.parameters()))
    assert not found.curved
    assert all((one == 0).all() for one in found.values.values())


def test_curvature_scales_with_the_loss_and_ignores_its_sign() -> None:
    model, loss = model_and_loss(lambda z: F.cross_entropy(z, LABELS))
    once, scaled, negative = (bbprop(value, [model.weight])[0] for value in (loss, loss * 1000, -loss))
    torch.testing.assert_close(scaled, once * 1000)
    torch.testing.assert_close(negative, once)


def test_root_of_a_loss_bends_with_what_is_inside() -> None:
    """One output, one sample apart: sqrt(mean (z - t)^2) has curvature (1 - d^2 / sum) / (n rmse)."""
    z = torch.randn(6, dtype=torch.float64, requires_grad=True)
    loss = F.mse_loss(z, torch.zeros(6).double()).sqrt()
    (found,) = bbprop(loss, [z])
    torch.testing.assert_close(found, hessian_diagonal(loss, [z])[0].abs().detach())


def test_explicit_penalty_adds_its_curvature() -> None:
    model, loss = model_and_loss(lambda z: F.cross_entropy(z, LABELS))
    (plain,) = bbprop(loss, [model.weight])
    penalty = 0.05 * model.weight.square().sum()
    (penalised,) = bbprop(F.cross_entropy(model(X), LABELS) + penalty, [model.weight])
    torch.testing.assert_close(penalised, plain + 0.1)


def test_learnt_variance_gets_curvature_from_both_terms() -> None:
    """0.5 (d^2 / exp(s) + s) at s = 0: curvature 0.5 d^2 in s, and 1 in the mean."""
    mean = torch.tensor([1.5], dtype=torch.float64, requires_grad=True)
    s = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    loss = 0.5 * (mean**2 / s.exp() + s).sum()
    of_mean, of_s = bbprop(loss, [mean, s])
    assert of_mean.item() == pytest.approx(1.0)
    assert of_s.item() > 0
    assert math.isfinite(of_s.item())


def test_upstream_gradient_weights_the_curvature() -> None:
    model, loss = model_and_loss(lambda z: F.cross_entropy(z, LABELS))
    once = curvature_of(loss, [model.weight]).values[model.weight]
    thrice = curvature_of(loss, [model.weight], upstream=torch.tensor(3.0).double())
    torch.testing.assert_close(thrice.values[model.weight], 3 * once)


def test_bad_input_is_named() -> None:
    model, loss = model_and_loss(lambda z: F.cross_entropy(z, LABELS))
    with pytest.raises(InputError, match=r"shape \(8, 3\)"):
        bbprop(model(X), [model.weight])
    with pytest.raises(InputError, match="does not depend"):
        bbprop(loss.detach(), [model.weight])
    with pytest.raises(InputError, match="mode must be"):
        bbprop(loss, [model.weight], mode="half")  # type: ignore[arg-type]
