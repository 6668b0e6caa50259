"""Single runs of a method on a benchmark, and several seeds of it side by side."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pesky.lab.benchmarks import Benchmark, Task
from pesky.lab.plain import finite_or_none
from pesky.lab.runs.threads import in_threads
from pesky.lab.runs.training import Training
from pesky.online import FitResult, Method, Moment, Network

__all__ = ["EpochReport", "RunResult", "run_once", "run_seeds"]


@dataclass(frozen=True)
class EpochReport:
    """Where a run stands after an epoch."""

    seed: int
    epoch: int
    loss: float  # mean over the epoch, as it was met
    test: float  # percent misclassified, or reconstruction error


@dataclass(frozen=True)
class RunResult:
    """How a run ended: errors in percent, or reconstruction errors."""

    seed: int
    train: float
    test: float
    network: Network
    fit: FitResult

    def numbers(self) -> dict[str, Any]:
        """What is worth keeping of it, ready for JSON."""
        return {
            "seed": self.seed,
            "status": self.fit.status,
            "diverged_at": self.fit.diverged_at,
            "train": finite_or_none(self.train),
            "test": finite_or_none(self.test),
            "epoch_losses": [finite_or_none(loss) for loss in self.fit.loss],
            "rejected_samples": self.fit.rejected,
            "seconds": round(self.fit.seconds, 2),
        }


def run_once(
    benchmark: Benchmark,
    task: Task,
    method: Method,
    *,
    seed: int,
    epochs: int,
    report: Callable[[EpochReport], None] | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Train from the seed's own start, in the seed's own order, and measure both errors."""
    training = Training(benchmark, task, seed)

    def after_epoch(moment: Moment) -> None:
        if report is not None and moment.end_of_epoch:
            report(EpochReport(seed, round(moment.epoch), moment.loss, training.error("test")))

    result = training.run(method, epochs=epochs, watch=after_epoch, stop=stop)
    return RunResult(seed, training.error("train"), training.error("test"), training.network, result)


def run_seeds(
    benchmark: Benchmark,
    task: Task,
    method: Method,
    *,
    seeds: int,
    epochs: int,
    jobs: int | None = None,
    report: Callable[[EpochReport], None] | None = None,
) -> list[RunResult]:
    """Run seeds 0, 1, ..., side by side."""

    def run(seed: int, stop: threading.Event) -> RunResult:
        return run_once(benchmark, task, method, seed=seed, epochs=epochs, report=report, stop=stop)

    return in_threads(run, range(seeds), jobs)
