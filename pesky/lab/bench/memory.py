"""How much memory the PyTorch optimizer takes beside Adam: bytes, the same on every machine."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.profiler import ProfilerActivity, profile

from pesky.torch import VSGD
from pesky.torch.explain import state_bytes

__all__ = ["bench_memory", "peak_of"]

_WIDTH = 512
_LAYERS = 8
_STEPS = 30  # after which the average of the iterates is looked at, too


def bench_memory() -> list[dict[str, Any]]:
    """Return bytes a parameter: of the state, and with what a step takes at most on its way.

    Parameters and their gradients are not counted; activations are too small to matter. Every step of
    ours measures the curvature and evaluates losses again.
    """
    rows = []
    for name, begin in {"vsgd": _vsgd, "adam": _adam}.items():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))
        optimizer, step = begin(model)
        for _ in range(_STEPS):
            step()
        state = state_bytes(optimizer)
        transient = max(peak_of(step) for _ in range(4))
        size = sum(one.numel() for one in model.parameters())
        rows.append(
            {
                "optimizer": name,
                "parameters": size,
                "state_bytes_per_parameter": state / size,
                "peak_bytes_per_parameter": (state + transient) / size,
            }
        )
    return rows


def peak_of(run: Callable[[], object]) -> int:
    """Return how many bytes more than before torch's tensors on the CPU take at most while this runs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run()
    assert watched.profiler is not None
    events: Any = watched.profiler.kineto_results
    changes = [one for one in events.events() if one.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda one: one.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return int(peak)


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(2, _WIDTH), torch.randn(2, _WIDTH)


def _vsgd(model: nn.Module) -> tuple[torch.optim.Optimizer, Callable[[], object]]:
    optimizer = VSGD(model.parameters(), curvature_every=1)

    def step() -> None:
        x, y = _batch()
        optimizer.minimize(lambda: mse_loss(model(x), y))

    return optimizer, step


def _adam(model: nn.Module) -> tuple[torch.optim.Optimizer, Callable[[], object]]:
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        x, y = _batch()
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return optimizer, step
