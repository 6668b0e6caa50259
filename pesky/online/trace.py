"""What can be seen of a run: rates, memory and loss at log-spaced steps from the first on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pesky.online.passes import Floats

__all__ = ["QUARTILES", "Trace", "next_traced_step"]

QUARTILES = ("min", "lower quartile", "median", "upper quartile", "max")
_PER_DECADE = 10


def next_traced_step(step: int) -> int:
    """Return the first traced step after `step`: 1, 2, 3, ..., then ten a decade."""
    k = 0 if step < 1 else int(np.floor(np.log10(step) * _PER_DECADE))
    while round(10 ** (k / _PER_DECADE)) <= step:
        k += 1
    return round(10 ** (k / _PER_DECADE))


class Trace:
    """Rows of a run's history, growing as it goes; `arrays` gives them as arrays to plot."""

    def __init__(self) -> None:
        """Start empty."""
        self._steps: list[int] = []
        self._rates: list[NDArray[np.float64]] = []
        self._memory: list[NDArray[np.float64]] = []
        self._loss: list[float] = []

    def add(self, step: int, rates: Floats, memory: Floats | None, loss: float) -> None:
        """Note the state after `step`; `loss` is the mean over the samples since the last note."""
        nothing = np.full(len(QUARTILES), np.nan)
        self._steps.append(step)
        self._rates.append(_quartiles(rates))
        self._memory.append(nothing if memory is None else _quartiles(memory))
        self._loss.append(loss)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return `step` (n,), `rate` and `memory` (n, 5: min, quartiles, max), and `loss` (n,)."""
        shape = (-1, len(QUARTILES))
        return {
            "step": np.array(self._steps, np.int64),
            "rate": np.array(self._rates, np.float64).reshape(shape),
            "memory": np.array(self._memory, np.float64).reshape(shape),
            "loss": np.array(self._loss, np.float64),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> "Trace":
        """Rebuild what `arrays` gave."""
        count = len(arrays["step"])
        if any(arrays[name].shape != (count, len(QUARTILES)) for name in ("rate", "memory")):
            raise ValueError("the trace's rates or memory are not five a step")
        if arrays["loss"].shape != (count,):
            raise ValueError("the trace's losses are not one a step")
        trace = cls()
        trace._steps = arrays["step"].tolist()
        trace._rates, trace._memory = list(arrays["rate"]), list(arrays["memory"])
        trace._loss = arrays["loss"].tolist()
        return trace


def _quartiles(values: Floats) -> NDArray[np.float64]:
    ranks = [round(share * (values.size - 1)) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return np.partition(values, ranks)[ranks].astype(np.float64)
