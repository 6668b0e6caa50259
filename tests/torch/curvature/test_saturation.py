"""Mode "saturation": Gauss and Newton's curvature, and |sum of g f''| of units that saturate."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.torch.curvature import Mode, bbprop, walk
from pesky.torch.curvature.node import Node
from pesky.torch.curvature.rules.saturation import saturation

UNITS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "logistic": torch.sigmoid}


def loss_of(z: Tensor, out: Tensor) -> Tensor:
    return F.mse_loss(z @ out, torch.ones(len(z), out.shape[1], dtype=z.dtype))


def two_layers(unit: Callable[[Tensor], Tensor], x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    return loss_of(unit(x @ w), out)


def bent(unit: Callable[[Tensor], Tensor], x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    """dL/dz f''(a) of every sample and unit, by autograd alone."""
    a = (x @ w).detach().requires_grad_()
    z = unit(a)
    (pull,) = torch.autograd.grad(loss_of(z, out), z, retain_graph=True)
    (first,) = torch.autograd.grad(z.sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    return pull * second


@pytest.fixture
def layers() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    x, w, out = (torch.randn(size, dtype=torch.float64) for size in ((6, 4), (4, 5), (5, 3)))
    return x, w.requires_grad_(), out.requires_grad_()


@pytest.mark.parametrize("unit", UNITS)
def test_samples_cancel_as_in_the_hessian_of_their_mean(
    unit: str, layers: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, w, out = layers
    loss = two_layers(UNITS[unit], x, w, out)
    plain, plain_out = bbprop(loss, [w, out])
    found, found_out = bbprop(loss, [w, out], mode="saturation")
    terms = bent(UNITS[unit], x, w, out)
    share = terms.sum(0).abs() / terms.abs().sum(0)
    torch.testing.assert_close(found, plain + x.square().T @ (terms.abs() * share), rtol=1e-9, atol=0)
    torch.testing.assert_close(found_out, plain_out, rtol=0, atol=0)
    # Where all inputs are alike, this is the whole term that Gauss and Newton leave out.
    ones = torch.ones_like(x)
    found, plain = (
        bbprop(two_layers(UNITS[unit], ones, w, out), [w], mode=mode)[0]
        for mode in ("saturation", "gauss-newton")
    )
    torch.testing.assert_close(found - plain, bent(UNITS[unit], ones, w, out).sum(0).abs().expand(4, 5))


def step_of(unit: str, starts: list[float], mode: Mode) -> float:
    """Gradient over curvature of a shift that samples at these inputs of a unit share."""
    shift = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    outputs = UNITS[unit](torch.tensor(starts, dtype=torch.float64)[:, None] + shift)
    loss = (outputs + 2).square().mean() / 2
    (h,) = bbprop(loss, [shift], mode=mode)
    (gradient,) = torch.autograd.grad(loss, shift)
    return float(gradient / h)


@pytest.mark.parametrize(("unit", "limit"), [("tanh", 0.5), ("logistic", 1.0)])
def test_a_saturated_unit_is_not_moved_ever_further(unit: str, limit: float) -> None:
    """Gauss and Newton's step for it grows without bounds, the other one does not."""
    for nearer, further in ((4.0, 6.0), (6.0, 8.0)):
        steps = [step_of(unit, [start], "gauss-newton") for start in (nearer, further)]
        assert steps[1] > 5 * steps[0]
        assert step_of(unit, [further], "saturation") == pytest.approx(limit, rel=0.02)
        # Samples at opposite ends cancel each other, and Gauss and Newton's step is left.
        both = [step_of(unit, [-further, further], mode) for mode in ("gauss-newton", "saturation")]
        assert both[1] < both[0]


@pytest.mark.parametrize("weight", [1e-9, 1e-2])
def test_what_the_loss_takes_from_a_unit_directly_does_not_hide_the_rest(
    weight: float, layers: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, w, out = layers

    def curvatures(mode: Mode) -> Tensor:
        z = torch.sigmoid(x @ w)
        penalty = -(0.05 * z.mean(0).log()).sum()  # as of a sparse autoencoder
        return bbprop(loss_of(z, out) + weight * penalty, [w], mode=mode)[0]

    terms = bent(torch.sigmoid, x, w, out)
    share = terms.sum(0).abs() / terms.abs().sum(0)
    expected = curvatures("gauss-newton") + x.square().T @ (terms.abs() * share)
    torch.testing.assert_close(curvatures("saturation"), expected, rtol=1e-9, atol=0)


def test_functions_of_parameters_have_no_samples() -> None:
    torch.manual_seed(1)
    x, w = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    w.requires_grad_()

    def loss() -> Tensor:
        return F.mse_loss(x @ torch.tanh(w), torch.ones(6, 3, dtype=torch.float64))

    z = torch.tanh(w).detach().requires_grad_()
    (pull,) = torch.autograd.grad(F.mse_loss(x @ z, torch.ones(6, 3, dtype=torch.float64)), z)
    missing = (2 * pull * z * (1 - z * z)).abs().detach()
    plain, found = (bbprop(loss(), [w], mode=mode)[0] for mode in ("gauss-newton", "saturation"))
    torch.testing.assert_close(found - plain, missing)


class Tangled(nn.Module):
    """Units below a fused LSTM, used twice, in a layer that is used twice, and split up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(5, 6), nn.Linear(6, 6)
        self.lstm, self.last = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)
        self.seen: list[Tensor] = []

    def unit(self, a: Tensor) -> Tensor:
        z = torch.tanh(a)
        z.retain_grad()
        self.seen.append(z)
        return z

    def forward(self, x: Tensor) -> Tensor:
        z = self.unit(self.first(x))
        left, right = self.unit(self.shared(z)), self.unit(self.shared(z * z))
        one, other = (left + right.flip(-1)).chunk(2, -1)
        y, _ = self.lstm(torch.cat([other, one], -1))
        return self.last(self.unit(y[:, -1]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("factor", [1.0, 65536.0])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_gradient_that_units_see_is_autograds(
    factor: float, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x, y = Tangled(), torch.randn(7, 3, 5), torch.randint(3, (7,))
    pulls: dict[int, Tensor] = {}

    def spy(node: Node, pull: Tensor) -> Tensor:
        pulls[node.function._saved_result.data_ptr()] = pull.clone()
        return saturation(node, pull)

    monkeypatch.setattr(walk, "saturation", spy)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = F.cross_entropy(model(x), y) * factor
    found = bbprop(loss, list(model.parameters()), mode="saturation")
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(torch.isfinite(one).all() and (one >= 0).all() for one in found)
    assert len(model.seen) == 4
    for z in model.seen:  # an LSTM that is not fused has units of its own, which are left out
        assert z.grad is not None
        tolerance = 0.05 if autocast else 1e-5
        assert (pulls[z.data_ptr()] - z.grad).norm() <= tolerance * z.grad.norm()


def test_networks_without_such_units_see_no_difference() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 8), nn.GELU())
    loss = F.cross_entropy(model(torch.randn(5, 1, 8, 8)), torch.tensor([0, 1, 2, 3, 4]))
    parameters = list(model.parameters())
    plain, found = (bbprop(loss, parameters, mode=mode) for mode in ("gauss-newton", "saturation"))
    for one, other in zip(plain, found, strict=True):
        assert torch.equal(one, other)


def test_units_of_the_loss_itself_have_their_exact_curvature() -> None:
    w = torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_()
    for loss in (F.binary_cross_entropy(w.sigmoid(), torch.full_like(w, 0.3)), w.tanh().mean()):
        plain, found = (bbprop(loss, [w], mode=mode)[0] for mode in ("gauss-newton", "saturation"))
        assert torch.equal(plain, found)


def test_a_single_sample_without_a_batch_dimension(layers: tuple[Tensor, Tensor, Tensor]) -> None:
    x, w, out = layers
    alone = F.mse_loss(torch.tanh(x[0] @ w) @ out, torch.ones(3, dtype=x.dtype))
    in_batch = two_layers(torch.tanh, x[:1], w, out)
    for one, other in zip(
        *(bbprop(loss, [w, out], mode="saturation") for loss in (alone, in_batch)), strict=True
    ):
        torch.testing.assert_close(one, other)
