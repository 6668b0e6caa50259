"""One run of the online engine: a network as its seed starts it, its training, its errors."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pesky.lab.benchmarks import Benchmark, Task
from pesky.lab.runs.completing import Interrupted
from pesky.lab.runs.means import Part
from pesky.online import FitResult, Method, Moment, Network, fit

__all__ = ["Training", "Watch", "error_of"]

Watch = Callable[[Moment], bool | None]  # something true ends the run


class Training:
    """A benchmark's network as a seed starts it, and the data that it learns from."""

    def __init__(self, benchmark: Benchmark, task: Task, seed: int) -> None:
        """Start the network."""
        self.network = benchmark.network(seed)
        self.task = task
        self.seed = seed

    def error(self, part: Part) -> float:
        """Return the error as it is now: percent misclassified, or reconstruction error."""
        return error_of(self.network, self.task, part)

    def run(
        self,
        method: Method,
        *,
        epochs: int,
        watch: Watch | None = None,
        every: int | None = None,
        stop: threading.Event | None = None,
        checkpoint: Path | None = None,
    ) -> FitResult:
        """Train in the seed's own order; whoever stops it, the run leaves nothing behind.

        `watch` is called after each epoch, and after every `every` samples if that is given.
        """
        result = fit(
            self.network,
            method,
            self.task.train_inputs,
            self.task.train_targets,
            epochs=epochs,
            seed=self.seed,
            callback=watch,
            every=every,
            stop=stop,
            checkpoint=checkpoint,
        )
        if result.status == "interrupted":
            raise Interrupted
        return result


def error_of(network: Network, task: Task, part: Part) -> float:
    """Return a network's error on one part of the data, which need not be finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if part == "train":
            return network.error(task.train_inputs, task.train_targets)
        return network.error(task.test_inputs, task.test_targets)
