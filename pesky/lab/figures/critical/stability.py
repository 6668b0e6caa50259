"""Whether a run is unstable."""

import math
import threading

import numpy as np
from numpy.typing import NDArray

from pesky.lab.figures.critical.setups import SHORTEST, WINDOW, Setup
from pesky.lab.runs.training import Training
from pesky.online import Moment, Network

__all__ = ["DEFINITION", "is_unstable"]

EXPLODED = 10.0  # times the loss at first
_LOOKED_AT = 1000  # samples, for the loss at first
DEFINITION = (
    f"unstable: within the first max({SHORTEST}, 2 sqrt(d)) samples the run diverges, or its mean loss "
    f"over {WINDOW} samples exceeds {EXPLODED:g} times that of the untrained network"
)


def is_unstable(setup: Setup, factor: float, seed: int, stop: threading.Event | None = None) -> bool:
    """Run vSGD-l with C = `factor` until its horizon, or until it is known to be unstable."""
    task = setup.task_at(seed)
    training = Training(setup.benchmark, task, seed)
    limit = EXPLODED * _mean_loss(training.network, task.train_inputs[:_LOOKED_AT], task.train_targets)
    exceeded = False

    def watch(moment: Moment) -> bool:
        nonlocal exceeded
        exceeded = moment.loss > limit
        return exceeded or moment.step >= setup.horizon

    epochs = math.ceil(setup.horizon / len(task.train_inputs))
    result = training.run(setup.method(factor), epochs=epochs, watch=watch, every=WINDOW, stop=stop)
    return exceeded or result.status == "diverged"


def _mean_loss(
    network: Network, inputs: NDArray[np.float32], targets: NDArray[np.int64] | None
) -> float:
    if targets is None:
        return network.error(inputs)
    outputs = network.outputs(inputs).astype(np.float64)
    likely = np.logaddexp.reduce(outputs, axis=1)
    return float(np.mean(likely - outputs[np.arange(len(inputs)), targets[: len(inputs)]]))
