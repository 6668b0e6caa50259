"""How fast the online engine is: ratios within one run, because machines differ and are noisy."""

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from pesky.errors import check_count
from pesky.online import SGD, VSGD, Learner, Method, Network
from pesky.online.learner import samples_of

__all__ = ["SIZES", "bench_online"]

SIZES = {
    "M0": (784, 10),
    "M1": (784, 120, 10),
    "M2": (784, 500, 300, 10),
    "C1": (3072, 360, 10),
}
_GROWTH = (10**3, 10**4, 10**5, 10**6, 10**7)  # parameters
_BYTES_PER_PARAMETER = 5 * 2 * 4 + 4  # theta, g, v, h and tau read and written; theta read going forward
_L2 = 1e-4

Say = Callable[[str], None]


def bench_online(
    *, repeats: int = 5, seconds: float = 0.3, say: Say = lambda text: None
) -> dict[str, Any]:
    """Measure everything; `seconds` is what one timing should take, `repeats` how often it is taken.

    Of each timing the best is kept: what disturbs a run only ever makes it slower.
    """
    check_count("repeats", repeats)
    timer = _Timer(repeats, seconds)
    networks = {}
    for name, sizes in SIZES.items():
        say(f"{name} {list(sizes)}")
        networks[name] = _bench_network(timer, name, sizes)
    growth = []
    for parameters in _GROWTH:
        say(f"{parameters:,} parameters")
        growth.append(_cost_per_parameter(timer, parameters))
    return {"networks": networks, "growth": growth, "bytes_per_parameter_and_step": _BYTES_PER_PARAMETER}


class _Timer:
    def __init__(self, repeats: int, seconds: float) -> None:
        self.repeats = repeats
        self.seconds = seconds

    def per_step(self, run: Callable[[int], None]) -> float:
        """Seconds a step of `run(steps)`."""
        run(3)
        start = perf_counter()
        run(10)
        steps = max(10, int(self.seconds / max((perf_counter() - start) / 10, 1e-9)))
        best = np.inf
        for _ in range(self.repeats):
            start = perf_counter()
            run(steps)
            best = min(best, (perf_counter() - start) / steps)
        return float(best)


def _bench_network(timer: _Timer, name: str, sizes: Sequence[int]) -> dict[str, Any]:
    adaptive, plain = _Engine(sizes, VSGD()), _Engine(sizes, SGD(1e-3))
    vsgd, sgd = timer.per_step(adaptive.run), timer.per_step(plain.run)
    bound = _copy_seconds(timer, adaptive.learner.network.parameters)
    row: dict[str, Any] = {
        "sizes": list(sizes),
        "parameters": adaptive.learner.network.parameters,
        "vsgd_l_microseconds": vsgd * 1e6,
        "sgd_microseconds": sgd * 1e6,
        "vsgd_l_over_sgd": vsgd / sgd,
        "share_of_copy_bandwidth": bound / vsgd,
        "vsgd_l_bytes_per_parameter": adaptive.learner.bytes_used / adaptive.learner.network.parameters,
    }
    torch_sgd = _torch_run(sizes)
    if torch_sgd is not None:
        slow = timer.per_step(torch_sgd)
        row |= {"torch_sgd_microseconds": slow * 1e6, "torch_sgd_over_vsgd_l": slow / vsgd}
    if name != "C1":
        row["two_threads_over_one"] = _thread_gain(timer, sizes)
    return row


class _Engine:
    """A learner that can be asked for any number of steps."""

    def __init__(self, sizes: Sequence[int], method: Method, samples: int = 256) -> None:
        rng = np.random.default_rng(0)
        inputs = rng.normal(0.0, 0.3, size=(samples, sizes[0])).astype(np.float32)
        labels = rng.integers(0, sizes[-1], size=samples)
        self.samples = samples_of(inputs, labels)
        self.learner = Learner(Network(sizes, l2=_L2), method)
        self.learner.start(self.samples, np.arange(10))
        self.order = np.arange(samples)

    def run(self, steps: int) -> None:
        for start in range(0, steps, self.order.size):
            self.learner.train(self.samples, self.order[: min(self.order.size, steps - start)])


def _copy_seconds(timer: _Timer, parameters: int) -> float:
    """Time of moving as many bytes as a step of vSGD-l does, by copying within the same working set."""
    half = np.ones(max(1, 5 * parameters // 2), np.float32)
    other = np.empty_like(half)

    def copy(times: int) -> None:
        for _ in range(times):
            np.copyto(other, half)

    return timer.per_step(copy) * (_BYTES_PER_PARAMETER * parameters) / (2 * half.nbytes)


def _cost_per_parameter(timer: _Timer, parameters: int) -> dict[str, float]:
    run = _Engine((parameters // 10 - 1, 10), VSGD(), samples=32)
    true = run.learner.network.parameters
    return {"parameters": true, "nanoseconds_per_parameter": timer.per_step(run.run) / true * 1e9}


def _thread_gain(timer: _Timer, sizes: Sequence[int]) -> float:
    """Throughput of two learners in two threads over that of one."""
    first, second = _Engine(sizes, VSGD()), _Engine(sizes, VSGD())

    def both(steps: int) -> None:
        other = threading.Thread(target=second.run, args=(steps,))
        other.start()
        first.run(steps)
        other.join()

    return 2 * timer.per_step(first.run) / timer.per_step(both)


def _torch_run(sizes: Sequence[int]) -> Callable[[int], None] | None:
    """The same network and batch size in eager PyTorch with `torch.optim.SGD`, one thread."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    torch.set_num_threads(1)
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, weight_decay=_L2)
    samples = torch.randn(256, 1, sizes[0]) * 0.3
    labels = torch.randint(0, sizes[-1], (256, 1))

    def run(steps: int) -> None:
        for step in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(samples[step % 256]), labels[step % 256])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run
