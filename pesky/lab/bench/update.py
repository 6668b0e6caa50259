"""How fast the PyTorch optimizer is: ratios within one run, because machines differ and are noisy."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from pesky.errors import check_count
from pesky.torch import VSGD
from pesky.torch.passes.eager import EagerBundle
from pesky.torch.step.parts import part_of

__all__ = ["SIZES", "THREADS", "Run", "Say", "bench_update", "in_turns", "with_threads"]

SIZES = (1_000_000, 10_000_000)  # parameters, of a thorough measurement
THREADS = (1, 2)
_LAYERS = 10  # tensors that the parameters come in
_MANY = 1000  # tensors of the measurement of what a tensor costs
_SLOW_SIZE = 1_000_000  # above, the eager update is measured less often

Say = Callable[[str], None]
Run = Callable[[], None]


def bench_update(
    *,
    repeats: int = 5,
    sizes: Sequence[int] = SIZES[:1],
    threads: Sequence[int] = THREADS[:1],
    say: Say = lambda text: None,
) -> list[dict[str, Any]]:
    """Time `step()` alone beside fused Adam's and beside the same rule in eager operations.

    The contestants take turns, so that whatever disturbs the machine disturbs all; medians are kept.
    `sizes` are numbers of parameters, `threads` how many torch may use.
    """
    check_count("repeats", repeats)
    rows = []
    for count in with_threads(threads):
        for size in sizes:
            say(f"{size:,} parameters, {count} thread{'s' * (count > 1)}")
            rows.append(_bench_size(size, count, repeats))
        rows.append(_bench_many(count, repeats))
    return rows


def with_threads(counts: Sequence[int]) -> Iterator[int]:
    """Let torch use so many threads, one count after the other; then as many as before."""
    before = torch.get_num_threads()
    try:
        for count in counts:
            torch.set_num_threads(count)
            yield count
    finally:
        torch.set_num_threads(before)


def _bench_size(size: int, threads: int, repeats: int) -> dict[str, Any]:
    runs = {
        "vsgd": _vsgd([size // _LAYERS] * _LAYERS),
        "vsgd_stale": _vsgd([size // _LAYERS] * _LAYERS, curvature_every=1_000_000),
        "adam": _adam([size // _LAYERS] * _LAYERS),
    }
    seconds = in_turns(runs, repeats)
    eager = {"eager": _eager([size // _LAYERS] * _LAYERS)}
    seconds |= in_turns(eager, repeats if size <= _SLOW_SIZE else 3)
    return {
        "parameters": size,
        "threads": threads,
        **{f"{name}_milliseconds": 1e3 * value for name, value in seconds.items()},
        "vsgd_over_adam": seconds["vsgd"] / seconds["adam"],
        "vsgd_without_new_curvature_over_adam": seconds["vsgd_stale"] / seconds["adam"],
        "eager_over_vsgd": seconds["eager"] / seconds["vsgd"],
    }


def _bench_many(threads: int, repeats: int) -> dict[str, Any]:
    sizes = [16] * _MANY
    seconds = in_turns({"vsgd": _vsgd(sizes), "adam": _adam(sizes)}, repeats)
    return {
        "tensors": _MANY,
        "threads": threads,
        "vsgd_microseconds_per_tensor": 1e6 * seconds["vsgd"] / _MANY,
        "adam_microseconds_per_tensor": 1e6 * seconds["adam"] / _MANY,
    }


def in_turns(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    """Return the median seconds of each run; they take turns."""
    for run in runs.values():
        run()
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = perf_counter()
            run()
            seconds[name].append(perf_counter() - start)
    return {name: median(times) for name, times in seconds.items()}


def _parameters(sizes: list[int]) -> list[Tensor]:
    parameters = [torch.randn(size, requires_grad=True) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def _adam(sizes: list[int]) -> Run:
    optimizer = torch.optim.Adam(_parameters(sizes), fused=True)
    return optimizer.step


def _vsgd(sizes: list[int], **settings: Any) -> Run:
    """A step of ours with curvature at hand, as if backward passes had just left it."""
    parameters = _parameters(sizes)
    curvatures = {parameter: torch.rand_like(parameter) + 0.1 for parameter in parameters}
    optimizer = VSGD(parameters, dialect="paper", init_batches=1, **settings)

    def run() -> None:
        if optimizer._is_due():
            optimizer._pending.add(curvatures)
        optimizer.step()

    run()  # the initial batch
    return run


def _eager(sizes: list[int]) -> Run:
    """The same rule, one torch operation after another."""
    parameters = _parameters(sizes)
    group = {
        "lr": 1.0,
        "weight_decay": 0.0,
        "decoupled_weight_decay": False,
        "curvature_floor": None,
        "granularity": "element",
    }
    parts = [part_of(one, torch.rand_like(one) + 0.1, group, {}, has_levels=False) for one in parameters]

    @torch.no_grad()
    def run() -> None:
        EagerBundle(parts).update()

    return run
