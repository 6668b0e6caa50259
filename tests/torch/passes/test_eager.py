"""Torch operations on a bundle: the curvature of entries, and the direction with it."""

from math import sqrt

import pytest
import torch

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
