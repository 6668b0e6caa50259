"""Torch operations on a bundle: the curvature of entries, and the direction with it."""

from math import sqrt

import pytest
import torch

from pesky import rule
from pesky.direction import follow_gradient
from pesky.torch.passes.bundle import Level, Part
from pesky.torch.passes.eager import EagerBundle, curvature_at
from pesky.torch.passes.fused import FusedBundle
from pesky.torch.step.parts import _begin


def test_curvature_follows_the_size_of_gradients_and_is_at_least_the_level():
    mean_square = torch.tensor([0.0, 0.5, 1.0, 4.0, 9.0, 900.0])
    found = curvature_at(Level(3.0, 1 / 4.0, 1.0), mean_square)
    torch.testing.assert_close(found, torch.tensor([3.0, 3.0, 3.0, 3.0, 4.5, 45.0]))


def test_without_a_typical_size_all_entries_have_the_level():
    """As before the first gradient, and where all are zero."""
    torch.testing.assert_close(curvature_at(Level(2.0, 0.0, 1.0), torch.rand(5)), torch.full((5,), 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_entries_have_the_type_of_averages(dtype):
    theta = torch.randn(4, dtype=dtype)
    kept = _begin(theta, "element", by_rows=False, has_levels=True)["mean_square"]
    assert curvature_at(Level(2.0, 1.0, 1.0), kept).dtype == kept.dtype


@pytest.mark.parametrize("curvature", [True, False])
def test_the_compiled_passes_agree_with_the_eager_ones_over_steps(curvature):
    """The mean of v that a step returns is what the next one measures entries in."""
    group = {
        "granularity": "element",
        "weight_decay": 0.1,
        "decoupled_weight_decay": False,
        "lr": 1.0,
        "curvature_floor": None,
    }
    found = []
    for kind in (EagerBundle, FusedBundle):
        torch.manual_seed(0)
        parts = []
        for size in (7, 40_000, 1):
            theta = torch.randn(size)
            state = _begin(theta, "element", by_rows=False, has_levels=True)
            bend = torch.rand(size) if curvature else None
            parts.append(Part(theta, torch.randn(size), bend, group, state, 0.5, 0.25))
        squares = [0.0] * len(parts)
        for _ in range(3):
            levels = [Level(0.5, 1 / square if square else 0.0, 0.5) for square in squares]
            for part in parts:
                part.gradient = torch.randn(len(part.theta))
            directed, (signals, squares) = kind(parts).direct(
                levels, lambda part: torch.empty_like(part.theta), slowed=False
            )
            directions, slope = directed.values, sum(directed.slopes)
        found.append([*directions, torch.tensor([slope, *signals, *squares])])
        for part, direction in zip(parts, directions, strict=True):
            longest = float(abs(direction).max()) * 0.5
            assert 0 < longest <= float(abs(0.5 * part.gradient + 0.1 * part.theta).max()) * sqrt(1.001)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)


EXTREMES = (0.0, 1e-30, 1e-12, 0.3, 1.0, 7.0, 1e12)  # squares of some are zero in float32


def extremes(dtype, count, seed):
    """Entries of all sizes, in every order."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, len(EXTREMES), (count,), generator=generator)
    return torch.tensor(EXTREMES, dtype=dtype)[chosen]


def part_of_extremes(dtype, count, seed, has_levels, **settings):
    group = {
        "granularity": "element",
        "weight_decay": 0.0,
        "decoupled_weight_decay": False,
        "lr": 1.0,
        "curvature_floor": None,
        **settings,
    }
    state = _begin(torch.zeros(count, dtype=dtype), "element", by_rows=False, has_levels=has_levels)
    signs = torch.where(extremes(dtype, count, seed + 9) > 0.5, 1.0, -1.0).to(dtype)
    for number, (name, value) in enumerate(state.items()):
        if isinstance(value, torch.Tensor) and name != "memory":
            value.copy_(extremes(dtype, count, seed + number + 1))
    theta = extremes(dtype, count, seed + 5)
    return Part(theta, signs * extremes(dtype, count, seed), None, group, state)


def copied(part):
    return {name: kept.clone() if torch.is_tensor(kept) else kept for name, kept in part.state.items()}


@pytest.mark.parametrize("is_curved", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grouped_updates_are_those_of_the_rule(dtype, is_curved):
    """Tensor by tensor, where nothing is known of an entry, or too much to square it."""
    parts = [part_of_extremes(dtype, count, count, has_levels=False) for count in (1, 40, 500)]
    expected = []
    for part in parts:
        part.curvature = extremes(dtype, len(part.theta), 77) if is_curved else None
        g, v, h, tau = (
            part.state[name].clone()
            for name in ("mean_gradient", "mean_square", "mean_curvature", "memory")
        )
        bend = h if part.curvature is None else part.curvature
        rate, *averages = rule.element_update(part.gradient, bend, g, v, h, tau)
        moved = part.theta - rate * part.gradient
        expected.append([torch.where(moved.isfinite(), moved, part.theta), *averages])
    EagerBundle(parts).update()
    for part, wanted in zip(parts, expected, strict=True):
        names = ("mean_gradient", "mean_square", "mean_curvature", "memory")
        found = [part.theta, *(part.state[name] for name in names)]
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=0)


@pytest.mark.parametrize("curvature", [0.0, 1e-30, 1e-3, 1.0, 1e200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grouped_directions_are_those_of_the_rule(dtype, curvature):
    """Where the level is too small to square, kernels flush it to zero, and so do we."""
    parts = [part_of_extremes(dtype, count, count, has_levels=True) for count in (1, 40, 500)]
    largest = torch.finfo(dtype).max
    levels = [Level(min(curvature, largest), inverse, 0.25) for inverse in (0.0, 1.0, 1e6)]
    before = [copied(part) for part in parts]
    directed, _ = EagerBundle(parts).direct(levels, torch.Tensor.clone, slowed=False)
    for part, level, state, found in zip(parts, levels, before, directed.values, strict=True):
        ratio, g, v = follow_gradient(
            part.gradient, state["mean_gradient"], state["mean_square"], level.weight
        )
        rate = rule.learning_rate(ratio, curvature_at(level, v))
        if level.curvature * level.curvature < torch.finfo(dtype).tiny:
            rate = torch.zeros_like(rate)
        torch.testing.assert_close(part.state["mean_gradient"], g, rtol=1e-5, atol=0)
        torch.testing.assert_close(part.state["mean_square"], v, rtol=1e-5, atol=0)
        smallest = torch.finfo(dtype).tiny  # below, products underflow in another order
        torch.testing.assert_close(found, rate * part.gradient, rtol=1e-4, atol=smallest)
