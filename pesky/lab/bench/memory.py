"""How much memory the PyTorch optimizer takes beside Adam, in bytes, and what a step then costs."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.profiler import ProfilerActivity, profile

from pesky.lab.bench.update import Say
from pesky.torch import VSGD
from pesky.torch.explain import state_bytes

__all__ = ["WIDTHS", "bench_memory", "peak_of"]

WIDTHS = (512, 2500)  # of eight layers: two million parameters, and fifty
_LAYERS = 8
_STEPS = 20


def bench_memory(*, width: int = WIDTHS[0], say: Say = lambda text: None) -> list[dict[str, Any]]:
    """Return bytes a parameter: of the state, and with what a step takes at most on its way.

    Parameters and their gradients are not counted; activations are too small to matter. Every step of
    ours measures the curvature and evaluates losses again, as all first steps do.
    """
    rows = []
    for name, begin in {"VSGD": _vsgd, "Adam": _adam}.items():
        say(f"memory of {name}")
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS)))
        optimizer, step = begin(model, width)
        step()
        start = perf_counter()
        for _ in range(_STEPS):
            step()
        seconds = (perf_counter() - start) / _STEPS
        state = state_bytes(optimizer)
        transient = max(_transient_of(step, model) for _ in range(4))
        size = sum(one.numel() for one in model.parameters())
        rows.append(
            {
                "optimizer": name,
                "parameters": size,
                "state_bytes_per_parameter": state / size,
                "peak_bytes_per_parameter": (state + transient) / size,
                "first_steps_milliseconds": 1e3 * seconds,
            }
        )
    return rows


def _transient_of(step: Callable[[], object], model: nn.Module) -> int:
    """Return how many bytes a step takes on its way, beside gradients.

    The profiler does not see that memory is freed which it has not seen taken, so there is none.
    """
    model.zero_grad()
    peak = peak_of(step)
    return peak - sum(one.grad.nbytes for one in model.parameters() if one.grad is not None)


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


def _batch(width: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, width), torch.randn(2, width)


def _vsgd(model: nn.Module, width: int) -> tuple[torch.optim.Optimizer, Callable[[], object]]:
    optimizer = VSGD(model.parameters(), curvature_every=1)

    def step() -> None:
        x, y = _batch(width)
        optimizer.minimize(lambda: mse_loss(model(x), y))

    return optimizer, step


def _adam(model: nn.Module, width: int) -> tuple[torch.optim.Optimizer, Callable[[], object]]:
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        x, y = _batch(width)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return optimizer, step
