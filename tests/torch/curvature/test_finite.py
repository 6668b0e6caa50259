"""Wherever the gradient is finite, bbprop is finite and not negative."""

import warnings
from collections.abc import Sequence
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pesky.torch import curvature
from pesky.torch.curvature import Mode, bbprop
from pesky.torch.curvature.rules.softmax import softmax_squared_of
from tests.torch.curvature.extremes import CASES, EXTREME, ORDINARY, Fill, fills, leaves_of
from tests.torch.curvature.models import MODELS

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "autocast": torch.float32}


def loss_and_leaves(name: str, filled: list[Fill], form: str) -> tuple[Tensor, list[Tensor]]:
    leaves = leaves_of(CASES[name], filled, FORMATS[form])
    with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
        return CASES[name].loss(*leaves), leaves


def check(loss: Tensor, leaves: list[Tensor], gradients: Sequence[Tensor | None]) -> None:
    for mode in get_args(Mode):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="bbprop has no rule")
            found = bbprop(loss, leaves, mode=mode)
        for leaf, gradient, h in zip(leaves, gradients, found, strict=True):
            assert h.shape == leaf.shape
            assert h.dtype == torch.float32
            if gradient is not None:
                entries = h.to_dense()[gradient.to_dense().isfinite()]
                assert entries.isfinite().all(), mode
                assert (entries >= 0).all(), mode


def gradients_of(loss: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)


def several(sizes: tuple[float, ...]) -> st.SearchStrategy[list[Fill]]:
    return st.lists(fills(sizes), min_size=6, max_size=6)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(filled=several(EXTREME), form=st.sampled_from(list(FORMATS)))
def test_curvature_is_finite_and_not_negative_wherever_the_gradient_is_finite(
    name: str, filled: list[Fill], form: str
) -> None:
    loss, leaves = loss_and_leaves(name, filled, form)
    check(loss, leaves, gradients_of(loss, leaves))


def no_second_walk(device: torch.device) -> torch.dtype:
    pytest.fail("the walk was repeated")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.singular])
@settings(max_examples=15, deadline=None)
@given(filled=several(ORDINARY), form=st.sampled_from(list(FORMATS)))
@example(filled=[Fill("normal", 4.0, seed) for seed in range(6)], form="float32")
def test_one_walk_is_enough_for_ordinary_numbers(name: str, filled: list[Fill], form: str) -> None:
    loss, leaves = loss_and_leaves(name, filled, form)
    gradients = gradients_of(loss, leaves)
    assume(all(one is None or (one.to_dense().abs() < 1e6).all() for one in gradients))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curvature, "wide_type", no_second_walk)
        check(loss, leaves, gradients)


def test_a_sharp_softmax_has_the_curvature_that_float64_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curvature, "wide_type", no_second_walk)
    torch.manual_seed(128)
    q, k, v = (torch.randn(size) * 3 for size in ((1, 2), (2, 2), (2, 1)))

    def curvature_in(dtype: torch.dtype) -> Tensor:
        leaf = q.to(dtype, copy=True).requires_grad_()
        scores = leaf @ k.to(dtype).T / 4
        return bbprop((scores.softmax(-1) @ v.to(dtype) - 1).square().mean(), [leaf])[0]

    torch.testing.assert_close(
        curvature_in(torch.float32), curvature_in(torch.float64).float(), rtol=0.2, atol=0
    )


@pytest.mark.parametrize("gap", [0.0, 1.0, 3.0, 5.0, 7.0, 9.0])
def test_softmax_is_right_up_to_a_factor_however_sharp_it_is(gap: float) -> None:
    torch.manual_seed(0)
    p = (torch.randn(200, 5) + gap * torch.eye(5)[0]).softmax(1)
    h = 0.5 + torch.rand(200, 5) / 2
    jacobian = torch.diag_embed(p.double()) - p.double()[:, :, None] * p.double()[:, None, :]
    exact = (jacobian.square() * h.double()[:, :, None]).sum(1)
    ratio = softmax_squared_of(p, h, 1) / exact
    assert ratio.min() > 0.3
    assert ratio.max() < 2.5


@pytest.mark.parametrize("gap", [0.0, 1.0, 3.0, 5.0, 7.0, 9.0])
def test_log_softmax_is_right_however_sharp_it_is(gap: float) -> None:
    """Only the class that towers above the others counts: d log p_0 / dx_j = d_0j - p_j."""
    torch.manual_seed(0)
    x = (torch.randn(200, 5) + gap * torch.eye(5)[0]).requires_grad_()
    weights = 0.5 + torch.rand(200) / 2
    (found,) = bbprop((weights * x.log_softmax(1)[:, 0].square()).sum() / 2, [x])
    jacobian = torch.eye(5)[0] - x.detach().double().softmax(1)
    exact = weights[:, None] * jacobian.square()
    torch.testing.assert_close(found, exact.float(), rtol=0.02, atol=0)


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION"])
@pytest.mark.parametrize("infinite", [False, True])
def test_queries_that_see_nothing_have_no_curvature_and_disturb_no_other(
    backend: str, infinite: bool
) -> None:
    torch.manual_seed(0)
    seen = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    mask = torch.zeros(3, 3).masked_fill(~seen, -torch.inf) if infinite else seen
    q, k, v = (torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3))

    def curvatures(rows: list[int]) -> tuple[Tensor, ...]:
        with nn.attention.sdpa_kernel(getattr(nn.attention.SDPBackend, backend)):
            y = F.scaled_dot_product_attention(q[:, :, rows], k, v, attn_mask=mask[rows])
        return bbprop(y.square().sum(), [q, k, v])

    found, expected = curvatures([0, 1, 2]), curvatures([0, 2])
    assert (found[0][:, :, 1] == 0).all()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", MODELS)
def test_a_second_walk_in_wide_numbers_agrees_with_the_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    parameters = list(model.parameters())
    for mode in get_args(Mode):
        first = bbprop(loss, parameters, mode=mode)
        with monkeypatch.context() as patch:
            patch.setattr(curvature, "sound", lambda values: False)
            second = bbprop(loss, parameters, mode=mode)
        for one, other in zip(first, second, strict=True):
            assert other.dtype == torch.float32
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.max()))


def test_squares_beyond_float32_are_those_of_float64() -> None:
    """The weights' squares are infinite in float32, and one of them is multiplied by zero."""
    torch.manual_seed(0)
    x, w, v = torch.randn(4, 3) * 1e-21, torch.randn(3, 5) * 1e22, torch.randn(5, 2) * 1e-20

    def curvatures(dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [one.to(dtype, copy=True).requires_grad_() for one in (x, w, v)]
        hidden = F.relu(leaves[0] @ leaves[1])
        return bbprop((hidden @ leaves[2]).square().sum(), leaves)

    most = torch.finfo(torch.float32).max
    for one, other in zip(curvatures(torch.float32), curvatures(torch.float64), strict=True):
        torch.testing.assert_close(one, other.clamp(max=most).float(), rtol=1e-4, atol=0)


def test_an_infinite_second_derivative_is_the_largest_number_and_nothing_where_it_is_masked() -> None:
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
    (bare,) = bbprop((x**1.5).sum(), [x])
    torch.testing.assert_close(bare, torch.tensor([largest, 0.75, 0.375]))
    x = torch.tensor([3.0, 1.0, 4.0], requires_grad=True)
    (masked,) = bbprop(((x * torch.tensor([0.0, 1.0, 1.0])) ** 1.5).sum(), [x])
    torch.testing.assert_close(masked, torch.tensor([0.0, 0.75, 0.375]))


def test_an_empty_batch_has_no_curvature_in_any_precision() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        w = torch.ones(3, 2, dtype=dtype, requires_grad=True)
        (found,) = bbprop(torch.tanh(torch.ones(0, 3, dtype=dtype) @ w).square().sum(), [w])
        assert torch.equal(found, torch.zeros(3, 2))
