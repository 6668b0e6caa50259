"""Torch operations on a bundle do what the compiled passes do."""

import pytest
import torch

from pesky.torch.passes.bundle import Part
from pesky.torch.passes.eager import EagerBundle
from pesky.torch.passes.fused import FusedBundle
from pesky.torch.step.parts import _begin


@pytest.mark.parametrize("curvature", [True, False])
def test_the_compiled_passes_agree_with_the_eager_ones(curvature):
    torch.manual_seed(0)
    group = {"granularity": "element", "weight_decay": 0.1, "lr": 1.0, "curvature_floor": None}
    found = []
    for kind in (EagerBundle, FusedBundle):
        torch.manual_seed(0)
        parts = []
        for size in (7, 40_000, 1):
            theta = torch.randn(size)
            state = _begin(theta, "element", by_rows=False)
            state["mean_curvature"].uniform_()
            bend = torch.rand(size) if curvature else None
            parts.append(Part(theta, torch.randn(size), bend, group, state, 0.5, 0.25, 3.0))
        batch = kind(parts)
        totals = batch.learn()
        means = [total / len(part.theta) for total, part in zip(totals, parts, strict=True)]
        directions = [torch.empty_like(part.theta) for part in parts]
        slope = batch.direct(means, directions)
        found.append([torch.tensor(totals), *directions, torch.tensor(slope)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
