"""Every rule against the squared Jacobian of the operation, computed entry by entry."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.torch.curvature import bbprop
from pesky.torch.curvature.rules import FAMILIES, RULES
from tests.torch.curvature.reference import Stage, squared_jacobians

torch.manual_seed(20131)


class Case(NamedTuple):
    name: str
    operation: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    positive: bool = False  # inputs between 0.2 and 0.8


def unary(*names: str, positive: bool = False) -> list[Case]:
    return [
        Case(name, getattr(torch, name, None) or getattr(F, name), ((3, 4),), positive) for name in names
    ]


CASES = [
    *unary(
        "tanh", "sigmoid", "relu", "exp", "expm1", "exp2", "sin", "cos", "atan", "sinh", "cosh", "erf"
    ),
    *unary(
        "gelu", "silu", "elu", "selu", "celu", "softplus", "mish", "hardswish", "leaky_relu", "relu6"
    ),
    *unary(
        "hardtanh", "hardsigmoid", "logsigmoid", "softsign", "tanhshrink", "softshrink", "hardshrink"
    ),
    *unary("neg", "abs", "square", "asinh", "erfc", "sinc"),
    *unary(
        "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "asin", "acos", positive=True
    ),
    *unary("tan", "atanh", "logit", "lgamma", "erfinv", positive=True),
    Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), ((3, 4),)),
    Case("pow", lambda x: x**3, ((3, 4),)),
    Case("pow of two tensors", torch.pow, ((3, 4), (3, 4)), positive=True),
    Case("clamp", lambda x: x.clamp(-0.5, 0.5), ((3, 4),)),
    Case("glu", lambda x: F.glu(x, -1), ((3, 4),)),
    Case("prelu", F.prelu, ((2, 3, 4), (3,))),
    Case("add, broadcast", torch.add, ((3, 4), (4,))),
    Case("add with a factor", lambda a, b: torch.add(a, b, alpha=-3), ((3, 4), (3, 1))),
    Case("sub, broadcast", torch.sub, ((2, 3, 4), (3, 1))),
    Case("rsub", lambda a: 2 - a, ((3, 4),)),
    Case("mul, broadcast", torch.mul, ((3, 4), (4,))),
    Case("mul by a number", lambda a: a * -2.5, ((3, 4),)),
    Case("div, broadcast", torch.div, ((3, 4), (3, 1)), positive=True),
    Case("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=2), ((3, 4), (3, 4), (3, 4))),
    Case("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c), ((3, 4), (3, 4), (3, 4)), positive=True),
    Case("lerp", lambda a, b: torch.lerp(a, b, 0.3), ((3, 4), (3, 4))),
    Case("maximum", torch.maximum, ((3, 4), (3, 4))),
    Case("where", lambda a, b: torch.where(torch.eye(3, dtype=torch.bool), a, b), ((3, 3), (3, 3))),
    Case("hypot", torch.hypot, ((3, 4), (3, 4))),
    Case("atan2", torch.atan2, ((3, 4), (3, 4))),
    Case("logaddexp", torch.logaddexp, ((3, 4), (3, 4))),
    Case("xlogy", torch.xlogy, ((3, 4), (3, 4)), positive=True),
    Case("sum", torch.sum, ((3, 4),)),
    Case("sum over one", lambda a: a.sum(1, keepdim=True), ((3, 4),)),
    Case("mean", lambda a: a.mean(0), ((3, 4),)),
    Case("logsumexp", lambda a: a.logsumexp((0, -1)), ((3, 2, 4),)),
    Case("norm", lambda a: a.norm(dim=1), ((3, 4),)),
    Case("vector norm", lambda a: torch.linalg.vector_norm(a, dim=0), ((3, 4),)),
    Case("prod", lambda a: a.prod(1), ((3, 4),)),
    Case("var", lambda a: a.var(1), ((3, 4),)),
    Case("std", lambda a: a.std(1), ((3, 4),)),
    Case("max", lambda a: a.max(1).values, ((3, 4),)),
    Case("amin", lambda a: a.amin(1), ((3, 4),)),
    Case("median", lambda a: a.median(1).values, ((3, 5),)),
    Case("sort", lambda a: a.sort(1).values, ((3, 4),)),
    Case("topk", lambda a: a.topk(2).values, ((3, 4),)),
    Case("cumsum", lambda a: a.cumsum(1), ((3, 4),)),
    Case("softmax", lambda a: a.softmax(-1), ((3, 4),)),
    Case("softmax over the first", lambda a: a.softmax(0), ((3, 4),)),
    Case("log_softmax", lambda a: a.log_softmax(-1), ((3, 4),)),
    Case("view", lambda a: a.view(6, 2), ((3, 4),)),
    Case("reshape of a transpose", lambda a: a.t().reshape(6, 2), ((3, 4),)),
    Case("permute", lambda a: a.permute(2, 0, 1), ((2, 3, 4),)),
    Case("expand", lambda a: a.expand(5, 3), ((1, 3),)),
    Case("repeat", lambda a: a.repeat(2, 3), ((2, 2),)),
    Case("squeeze and unsqueeze", lambda a: a.squeeze(1).unsqueeze(0), ((3, 1, 4),)),
    Case("flip and roll", lambda a: a.flip(0).roll(1, 1), ((3, 4),)),
    Case("select and slice", lambda a: a[1:, 2], ((3, 4),)),
    Case("index with repetitions", lambda a: a[torch.tensor([0, 2, 2, 2])], ((3, 4),)),
    Case("index_select", lambda a: a.index_select(1, torch.tensor([1, 1, 0])), ((3, 4),)),
    Case("gather", lambda a: a.gather(1, torch.tensor([[0, 0], [1, 2], [3, 3]])), ((3, 4),)),
    Case("scatter", lambda a, b: a.scatter(1, torch.tensor([[0], [1], [2]]), b), ((3, 4), (3, 1))),
    Case("index_add", lambda a, b: a.index_add(0, torch.tensor([0, 0]), b), ((3, 4), (2, 4))),
    Case("cat", lambda a, b: torch.cat([a, b, a]), ((3, 4), (2, 4))),
    Case("stack", lambda a, b: torch.stack([a, b], 1), ((3, 4), (3, 4))),
    Case("split", lambda a: a.split([1, 3], 1)[1], ((3, 4),)),
    Case("chunk", lambda a: a.chunk(2, 1)[0], ((3, 4),)),
    Case("unbind", lambda a: a.unbind(1)[2], ((3, 4),)),
    Case("pad", lambda a: F.pad(a, (1, 2)), ((3, 4),)),
    Case("reflection pad", lambda a: F.pad(a, (2, 2), mode="reflect"), ((2, 3, 4),)),
    Case("replication pad", lambda a: F.pad(a, (1, 1, 1, 1), mode="replicate"), ((2, 3, 4, 4),)),
    Case("circular pad", lambda a: F.pad(a, (1, 1), mode="circular"), ((2, 3, 4),)),
    Case("windows", lambda a: a.unfold(1, 2, 2), ((3, 4),)),
    Case("im2col", lambda a: F.unfold(a, 2), ((2, 3, 4, 4),)),
    Case("col2im", lambda a: F.fold(a, (3, 3), 2), ((2, 8, 4),)),
    Case("pixel shuffle", lambda a: F.pixel_shuffle(a, 2), ((1, 4, 3, 3),)),
    Case("diagonal", torch.diagonal, ((3, 3),)),
    Case("tril", torch.tril, ((3, 3),)),
    Case("masked fill", lambda a: a.masked_fill(torch.eye(3, dtype=torch.bool), 0.0), ((3, 3),)),
    Case("embedding", lambda w: F.embedding(torch.tensor([[0, 1], [1, 1]]), w), ((3, 4),)),
    Case("max pool, overlapping", lambda a: F.max_pool2d(a, 3, 1), ((2, 2, 5, 5),)),
    Case("max pool 1d", lambda a: F.max_pool1d(a, 2), ((2, 2, 6),)),
    Case("adaptive max pool", lambda a: F.adaptive_max_pool2d(a, 2), ((2, 2, 5, 5),)),
    Case("average pool", lambda a: F.avg_pool2d(a, 2), ((2, 2, 4, 4),)),
    Case("average pool, overlapping", lambda a: F.avg_pool2d(a, 3, 2, 1), ((2, 2, 5, 5),)),
    Case(
        "average pool without padding", lambda a: F.avg_pool2d(a, 3, 2, 1, False, False), ((1, 2, 5, 5),)
    ),
    Case("average pool, ceiling", lambda a: F.avg_pool2d(a, 3, 2, 1, True), ((1, 2, 6, 6),)),
    Case("average pool, divisor", lambda a: F.avg_pool2d(a, 2, divisor_override=3), ((1, 2, 4, 4),)),
    Case("average pool 1d", lambda a: F.avg_pool1d(a, 2, 1), ((2, 2, 6),)),
    Case("average pool 3d", lambda a: F.avg_pool3d(a, 2, 1), ((1, 2, 3, 3, 3),)),
    Case("adaptive average pool", lambda a: F.adaptive_avg_pool2d(a, (2, 3)), ((2, 2, 5, 4),)),
    Case("adaptive average pool 3d", lambda a: F.adaptive_avg_pool3d(a, 2), ((1, 1, 3, 4, 5),)),
    Case("nearest upsampling", lambda a: F.interpolate(a, scale_factor=2), ((1, 2, 3, 3),)),
    Case("mm", torch.mm, ((3, 4), (4, 2))),
    Case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=-3), ((2,), (3, 4), (4, 2))),
    Case("bmm", torch.bmm, ((2, 3, 4), (2, 4, 2))),
    Case("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, alpha=2), ((1, 2), (2, 3, 4), (2, 4, 2))),
    Case("mv", torch.mv, ((3, 4), (4,))),
    Case("dot", torch.dot, ((4,), (4,))),
    Case("matmul, broadcast", torch.matmul, ((2, 1, 3, 4), (4, 2))),
    Case("einsum", lambda a, b: torch.einsum("bij,kj->bik", a, b), ((2, 3, 4), (5, 4))),
    Case("linear", F.linear, ((3, 4), (2, 4), (2,))),
    Case("linear on sequences", F.linear, ((2, 3, 4), (2, 4), (2,))),
    Case("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1), ((2, 2, 5), (3, 2, 3), (3,))),
    Case("conv2d", lambda x, w, b: F.conv2d(x, w, b), ((2, 2, 4, 4), (3, 2, 3, 3), (3,))),
    Case(
        "conv2d, strides", lambda x, w: F.conv2d(x, w, stride=2, padding=1), ((1, 2, 5, 5), (3, 2, 3, 3))
    ),
    Case("conv2d, groups", lambda x, w: F.conv2d(x, w, groups=2), ((1, 4, 4, 4), (4, 2, 3, 3))),
    Case("conv2d, dilation", lambda x, w: F.conv2d(x, w, dilation=2), ((1, 2, 5, 5), (2, 2, 2, 2))),
    Case("conv3d", lambda x, w: F.conv3d(x, w), ((1, 2, 3, 3, 3), (2, 2, 2, 2, 2))),
    Case(
        "transposed conv2d",
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1),
        ((1, 2, 3, 3), (2, 3, 2, 2), (3,)),
    ),
    Case("transposed conv1d", lambda x, w: F.conv_transpose1d(x, w, groups=2), ((1, 2, 4), (2, 3, 2))),
    Case(
        "batch norm in training",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        ((4, 3, 2), (3,), (3,)),
    ),
    Case(
        "batch norm in evaluation",
        lambda x, w, b: F.batch_norm(x, torch.ones(3).double(), 2 * torch.ones(3).double(), w, b),
        ((4, 3), (3,), (3,)),
    ),
    Case("layer norm", lambda x, w, b: F.layer_norm(x, (2, 4), w, b), ((3, 2, 4), (2, 4), (2, 4))),
    Case("layer norm without weights", lambda x: F.layer_norm(x, (4,)), ((3, 4),)),
    Case("group norm", lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 3), (4,), (4,))),
    Case("instance norm", lambda x: F.instance_norm(x), ((2, 3, 4),)),
    Case("cosine of itself with constants", lambda x: x / 3.0 + 1.0, ((2, 3),)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule_is_the_squared_jacobian(case: Case) -> None:
    names = [f"x{number}" for number in range(len(case.shapes))]
    inputs = {
        name: torch.rand(shape, dtype=torch.float64) * 0.6 + 0.2
        if case.positive
        else torch.randn(shape, dtype=torch.float64)
        for name, shape in zip(names, case.shapes, strict=True)
    }
    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    result = case.operation(*leaves.values())
    weights = torch.rand_like(result)
    loss = (weights * result**2).sum() / 2  # whose curvature at the result is `weights`
    stages = _stages_of(case, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.func is slow here and there, and says so
        expected = squared_jacobians(stages, inputs, weights.detach())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bbprop(loss, list(leaves.values()), strict=True)
    for name, h in zip(names, found, strict=True):
        assert h.shape == inputs[name].shape
        torch.testing.assert_close(h, expected[name], rtol=1e-9, atol=1e-12)


def _stages_of(case: Case, names: list[str]) -> list[Stage]:
    """Operations that autograd records in several steps are one stage all the same if they are linear
    in each argument, or if one of the steps is elementwise; see COMPOSED for the others."""
    return COMPOSED.get(case.name, [Stage("y", case.operation, names)])


COMPOSED = {
    "softsign": [
        Stage("a", torch.abs, ["x0"]),
        Stage("b", lambda a: a + 1, ["a"]),
        Stage("y", torch.div, ["x0", "b"]),
    ],
    "tanhshrink": [Stage("a", torch.tanh, ["x0"]), Stage("y", torch.sub, ["x0", "a"])],
    "cat": [
        Stage("a", lambda a: torch.cat([a, torch.zeros(5, 4).double()]), ["x0"]),
        Stage(
            "b", lambda b: torch.cat([torch.zeros(3, 4).double(), b, torch.zeros(3, 4).double()]), ["x1"]
        ),
        Stage("c", lambda a: torch.cat([torch.zeros(5, 4).double(), a]), ["x0"]),
        Stage("y", lambda a, b, c: a + b + c, ["a", "b", "c"]),
    ],
}


def test_no_operation_has_two_rules() -> None:
    assert len(RULES) == sum(len(family.RULES) for family in FAMILIES)


def attention_stages(mask: Tensor | None, scale: float) -> list[Stage]:
    hidden = 0.0 if mask is None else mask
    return [
        Stage("s", lambda q, k: scale * q @ k.mT, ["q", "k"]),
        Stage("p", lambda s: (s + hidden).softmax(-1), ["s"]),
        Stage("y", torch.matmul, ["p", "v"]),
    ]


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "boolean mask", "scale", "math"])
def test_attention_is_its_three_stages(kind: str) -> None:
    inputs = {name: torch.randn(2, 2, 5, 4, dtype=torch.float64) for name in "qkv"}
    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    hidden = torch.full((5, 5), -torch.inf, dtype=torch.float64).triu(1)
    scale, mask, options = 0.5, None, {}
    if kind == "causal":
        mask, options = hidden, {"is_causal": True}
    elif kind == "mask":
        mask = torch.randn(5, 5, dtype=torch.float64)
        options = {"attn_mask": mask}
    elif kind == "boolean mask":
        mask, options = hidden, {"attn_mask": hidden == 0}
    elif kind == "scale":
        scale, options = 0.3, {"scale": 0.3}
    backend = nn.attention.SDPBackend.MATH if kind == "math" else nn.attention.SDPBackend.FLASH_ATTENTION
    with nn.attention.sdpa_kernel(backend):
        y = F.scaled_dot_product_attention(*leaves.values(), **options)
    weights = torch.rand_like(y)
    expected = squared_jacobians(attention_stages(mask, scale), inputs, weights.detach())
    found = bbprop((weights * y**2).sum() / 2, list(leaves.values()), strict=True)
    for name, h in zip("qkv", found, strict=True):
        torch.testing.assert_close(h, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_lstm_is_its_cells(bias: bool, reverse: bool) -> None:
    """In float32, most processors run a layer as one operation, and this is about its rule."""
    torch.manual_seed(3)
    layer = nn.LSTM(3, 4, bias=bias, bidirectional=reverse)
    x = torch.randn(5, 2, 3, requires_grad=True)
    fused, _ = layer(x)
    weights = torch.rand_like(fused)
    params = [x, *layer.parameters()]
    found = bbprop((weights * fused**2).sum() / 2, params, strict=True)

    slow = nn.LSTM(3, 4, bias=bias, bidirectional=reverse).double()
    slow.load_state_dict(layer.state_dict())
    x64 = x.detach().double().requires_grad_()
    plain, _ = slow(x64)  # in float64 autograd records every cell
    torch.testing.assert_close(plain.float(), fused)
    expected = bbprop((weights * plain**2).sum() / 2, [x64, *slow.parameters()], strict=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-7)


def test_random_signs_are_right_on_average() -> None:
    """Bilinear upsampling has no rule. The seed of the signs follows the loss, so the loss is varied."""
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64)
    resize = Stage("y", lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), ["x"])
    weights = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    expected = squared_jacobians([resize], {"x": x}, weights)["x"]
    estimates = []
    leaf = x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(2000):
            loss = (weights * resize.operation(leaf) ** 2).sum() / 2 + number
            estimates.append(bbprop(loss, [leaf])[0])
    found = torch.stack(estimates)
    error = found.std(0) / len(estimates) ** 0.5
    assert ((found.mean(0) - expected).abs() < 5 * error).all()
