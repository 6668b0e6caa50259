"""Whole graphs: branches, shared weights, loops, models as people build them, the online engine's."""

import gc
import warnings
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from pesky.online import Network
from pesky.torch import VSGD
from pesky.torch.curvature import UnsupportedGraph, bbprop, curvature_of
from tests.online.reference import Model
from tests.torch.curvature.models import MODELS
from tests.torch.curvature.reference import Stage, mean_curvatures, run, squared_jacobians
from tests.torch.networks import torch_twin

A, B = (torch.randn(4, 4, dtype=torch.float64) for _ in range(2))

GRAPHS = {
    "residual branch": [
        Stage("a", torch.mm, ["x", "w"]),
        Stage("b", torch.tanh, ["a"]),
        Stage("y", torch.add, ["x", "b"]),
    ],
    "shared weights": [
        Stage("a", torch.mm, ["x", "w"]),
        Stage("b", torch.tanh, ["a"]),
        Stage("c", torch.mm, ["b", "w"]),
        Stage("y", torch.sigmoid, ["c"]),
    ],
    "recurrent loop": [
        Stage("a0", torch.mm, ["x", "w"]),
        Stage("h0", torch.tanh, ["a0"]),
        Stage("a1", torch.mm, ["h0", "w"]),
        Stage("s1", torch.add, ["a1", "x"]),
        Stage("h1", torch.tanh, ["s1"]),
        Stage("a2", torch.mm, ["h1", "w"]),
        Stage("y", torch.tanh, ["a2"]),
    ],
    "gate": [
        Stage("a", torch.mm, ["x", "w"]),
        Stage("b", torch.sigmoid, ["a"]),
        Stage("c", torch.mul, ["x", "b"]),
        Stage("d", lambda c: c.softmax(1), ["c"]),
        Stage("y", torch.mm, ["d", "w"]),
    ],
    "squeeze and excitation": [
        Stage("m", lambda x: x.mean(0, keepdim=True), ["x"]),
        Stage("a", torch.mm, ["m", "w"]),
        Stage("b", torch.sigmoid, ["a"]),
        Stage("y", torch.mul, ["x", "b"]),
    ],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_is_the_sum_over_its_paths(name: str) -> None:
    inputs = {"x": A, "w": B}
    leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}
    y = run(GRAPHS[name], leaves)["y"]
    weights = torch.rand_like(y)
    expected = squared_jacobians(GRAPHS[name], inputs, weights.detach())
    found = bbprop((weights * y**2).sum() / 2, list(leaves.values()), strict=True)
    for key, h in zip(leaves, found, strict=True):
        torch.testing.assert_close(h, expected[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sizes", [[20, 5], [20, 12, 5], [20, 12, 8, 5]], ids=str)
@pytest.mark.parametrize("loss_name", ["cross-entropy", "squared-error"])
def test_same_as_the_online_engine_on_the_papers_networks(sizes: list[int], loss_name: str) -> None:
    network = Network(sizes, loss=loss_name, seed=3)
    model = torch_twin(network, torch.float64)
    x = np.random.default_rng(0).normal(size=sizes[0])
    output = model(torch.tensor(x)[None])
    if loss_name == "cross-entropy":
        loss = F.cross_entropy(output, torch.tensor([2]))
    else:
        loss = F.mse_loss(output, torch.zeros_like(output), reduction="sum") / 2
    expected = Model(network).curvature(x)
    found = bbprop(loss, list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-9)


def gauss_newton_diagonal(model: nn.Module, x: Tensor, bend: Tensor) -> list[Tensor]:
    """Sum J^T diag(bend) J, with J from torch.func; bend belongs to the outputs."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    jacobians = jacrev(lambda p: functional_call(model, p, (x,)))(parameters)
    return [
        torch.einsum("o,op->p", bend.flatten(), jacobian.reshape(bend.numel(), -1).square()).view_as(
            value
        )
        for jacobian, value in zip(jacobians.values(), parameters.values(), strict=True)
    ]


def test_last_layer_of_a_convolutional_network_has_the_exact_gauss_newton_diagonal() -> None:
    """In the layers below bbprop leaves out how hidden units move together."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
    ).double()
    x = torch.randn(5, 1, 8, 8, dtype=torch.float64)
    output = model(x)
    loss = F.mse_loss(output, torch.zeros_like(output), reduction="sum") / 2
    found = bbprop(loss, list(model.parameters()), strict=True)
    exact = gauss_newton_diagonal(model, x, torch.ones_like(output))
    torch.testing.assert_close(found[2], exact[2])
    torch.testing.assert_close(found[3], exact[3])


def test_full_mode_adds_the_bend_of_hidden_units() -> None:
    """With one unit a layer nothing moves together, so the full form is the exact second derivative."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1), nn.Tanh()).double()
    x = torch.tensor([[0.7]], dtype=torch.float64)
    parameters = list(model.parameters())
    loss = F.mse_loss(model(x), torch.tensor([[2.0]], dtype=torch.float64))
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    exact = [
        torch.autograd.grad(gradient.sum(), [parameter], retain_graph=True)[0].abs()
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]
    found = bbprop(loss, parameters, mode="full", strict=True)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)
    plain = bbprop(loss, parameters)
    assert not torch.allclose(plain[0], found[0])


@pytest.mark.parametrize("name", MODELS)
def test_models_of_today_need_no_guess(name: str) -> None:
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    parameters = [one for one in model.parameters() if one.requires_grad]
    found = curvature_of(loss, parameters, strict=True)
    assert found.curved
    assert not found.probed
    assert len(found.values) == len(parameters)
    for one in parameters:
        h = found.values[one]
        assert h.shape == one.shape
        assert torch.isfinite(h).all()
        assert (h >= 0).all()
        assert (h > 0).any()
    loss.backward()  # the graph is as good as before


@pytest.mark.parametrize("name", MODELS)
def test_models_of_today_agree_with_the_hessian_in_size(name: str) -> None:
    """bbprop leaves out how units, and a kernel's positions, move together, so it is not equal to the
    Hessian's diagonal; but the means over whole parameters are in its order."""
    torch.manual_seed(0)
    with nn.attention.sdpa_kernel(
        nn.attention.SDPBackend.MATH
    ):  # the fused one has no second derivative
        model, loss = MODELS[name]()
    parameters = [one for one in model.parameters() if one.requires_grad]
    ours, exact = mean_curvatures(loss, parameters, probes=30)
    ratios = (ours / exact)[exact > 0.05 * exact.max()]
    assert (ratios > 1 / 200).all()
    assert (ratios < 30).all()


def test_unknown_operation_is_reported_once_or_refused() -> None:
    x = torch.randn(1, 1, 4, 4, requires_grad=True)

    def loss() -> Tensor:
        return F.grid_sample(x, torch.rand(1, 3, 3, 2), align_corners=False).square().mean()

    with pytest.warns(UserWarning, match="GridSampler2DBackward0"):
        found = curvature_of(loss(), [x])
    assert found.probed == {"GridSampler2DBackward0"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curvature_of(loss(), [x])
    with pytest.raises(UnsupportedGraph, match="GridSampler2DBackward0"):
        bbprop(loss(), [x], strict=True)


@pytest.mark.parametrize("source", ["bbprop", None])
@pytest.mark.filterwarnings("ignore:bbprop cannot walk")
def test_complex_numbers_are_refused_and_an_optimizer_measures_otherwise(
    source: Literal["bbprop"] | None,
) -> None:
    x, w = torch.ones(4, 8), torch.ones(8, requires_grad=True)

    def loss() -> Tensor:
        return (torch.fft.rfft(x * w).abs() - 1).square().mean()

    with pytest.raises(UnsupportedGraph, match="complex"):
        bbprop(loss(), [w])
    first = loss().item()
    optimizer = VSGD([w], init_batches=2, curvature=source)
    for _ in range(21):
        optimizer.minimize(loss)
    assert loss().item() < first
    assert list(optimizer.explain().curvature_sources) == ["finite-difference"]


def test_what_bbprop_cannot_walk_is_said() -> None:
    w = torch.ones(8, requires_grad=True)
    optimizer = VSGD([w], init_batches=2, curvature="bbprop")
    with pytest.warns(UserWarning, match="finite-difference"):
        optimizer.minimize(lambda: (torch.fft.rfft(w).abs() - 1).square().mean())


class Cube(torch.autograd.Function):
    """x^3, with a backward pass in Python."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


def test_functions_written_in_python_are_probed() -> None:
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = bbprop(Cube.apply(x).square().sum() / 2, [x])
    torch.testing.assert_close(found, (3 * x.detach() ** 2) ** 2)  # elementwise: signs do not matter


def test_half_precision_does_not_underflow() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
    x, y = torch.randn(16, 20), torch.randint(0, 5, (16,))
    exact = bbprop(F.cross_entropy(model(x), y) * 1e-6, list(model.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y) * 1e-6
    for one, other in zip(bbprop(loss, list(model.parameters())), exact, strict=True):
        assert one.dtype == torch.float32
        assert (one.sum() / other.sum() - 1).abs() < 0.05


@pytest.mark.parametrize("loss_of", [F.mse_loss, F.cross_entropy, F.huber_loss])
def test_models_in_half_precision_have_curvature_in_float32(loss_of) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
    x, y = torch.randn(16, 20), torch.rand(16, 5)
    exact = bbprop(loss_of(model(x), y), list(model.parameters()))
    half = model.to(torch.bfloat16)
    found = bbprop(loss_of(half(x.bfloat16()), y.bfloat16()), list(half.parameters()))
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one.sum() / other.sum() - 1).abs() < 0.1


def test_random_numbers_of_the_user_are_left_alone() -> None:
    x = torch.randn(1, 1, 3, 3, requires_grad=True)
    loss = F.interpolate(x, scale_factor=2, mode="bicubic").square().mean()
    torch.manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = (bbprop(loss, [x])[0] for _ in range(2))
    drawn = torch.rand(3)
    torch.manual_seed(7)
    torch.testing.assert_close(drawn, torch.rand(3))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_nothing_is_kept_alive() -> None:
    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(one), Tensor) for one in gc.get_objects())

    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))

    def once() -> None:
        bbprop(model(torch.randn(16, 20)).square().mean(), list(model.parameters()))

    once()
    before = tensors()
    for _ in range(20):
        once()
    assert tensors() <= before


@pytest.mark.parametrize("mode", ["gauss-newton", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sparse_curvature_passes_on_through_a_second_backward_pass(mode, dtype):
    """A gradient penalty on a sparse embedding: what is about some rows only goes on from there."""
    table = nn.Embedding(6, 3, sparse=True, dtype=dtype)
    layer = nn.Linear(3, 2, dtype=dtype)
    hidden = layer(table(torch.tensor([0, 1, 2]))).tanh().sum()
    (slope,) = torch.autograd.grad(hidden, [table.weight], create_graph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that operations without a rule are estimated
        loss = hidden.square() + slope.to_dense().square().sum()
        found = bbprop(loss, [table.weight, layer.weight], mode=mode)
    assert all(one.to_dense().isfinite().all() and (one.to_dense() >= 0).all() for one in found)
