"""Several methods on one noisy quadratic: from their names to a table of results."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pesky.errors import InputError
from pesky.quadratic import SGD, VSGD, Method, NoisyQuadratic, Oracle, Trace, simulate

__all__ = ["PAPER_METHODS", "compare", "method_from_text", "summary"]

_NUMBER = r"(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
_SCHEDULE = re.compile(rf"sgd:{_NUMBER}(?:(/t)|/\(1\+{_NUMBER}t\))?")
_FORMS = "vsgd-l, vsgd-b, vsgd-g, oracle-l, oracle-g, sgd:0.2, sgd:0.2/t or sgd:0.2/(1+0.01t)"

# The contestants of the paper's Figures 3 and 4.
PAPER_METHODS: tuple[Method, ...] = (
    SGD(1.0),
    SGD(0.2),
    SGD(1.0, cooling="1/t"),
    SGD(0.2, cooling="1/t"),
    VSGD(),
    Oracle(),
)


def method_from_text(text: str, blocks: Sequence[int] = ()) -> Method:
    """Return the method that a user wrote; `blocks` are the block sizes of vsgd-b.

    >>> method_from_text("sgd:0.2/t").name
    'SGD 0.2/t'
    """
    plain = text.strip().lower()
    fixed: dict[str, Method] = {
        "vsgd-l": VSGD("element"),
        "vsgd-g": VSGD("global"),
        "oracle-l": Oracle("element"),
        "oracle-g": Oracle("global"),
    }
    if plain in fixed:
        return fixed[plain]
    if plain == "vsgd-b":
        if not blocks:
            raise InputError("vsgd-b needs the sizes of its blocks; give --blocks, such as 2,1")
        return VSGD("block", blocks=tuple(blocks))
    match = _SCHEDULE.fullmatch(plain)
    if match is None:
        raise InputError(f"unknown method {text!r}; write {_FORMS}")
    eta0, over_t, gamma = match.groups()
    if over_t:
        return SGD(float(eta0), cooling="1/t")
    return SGD(float(eta0), gamma=float(gamma or 0))


def compare(
    problem: NoisyQuadratic, methods: Iterable[Method], *, steps: int, runs: int, seed: int
) -> list[Trace]:
    """Run every method on the same samples."""
    return [simulate(problem, method, steps=steps, runs=runs, seed=seed) for method in methods]


def summary(traces: Iterable[Trace]) -> list[dict[str, Any]]:
    """Return the numbers that matter of each trace, ready for JSON (infinity becomes None)."""
    return [
        {
            "name": trace.name,
            "final_median_excess_loss": _plain(trace.median_excess()[-1]),
            "mean_excess_loss": _plain(np.mean(trace.excess_loss)),
            "mean_loss": _plain(np.mean(trace.loss)),
            "final_median_rate": _plain(trace.median_rate()[-1]),
            "rejected_samples": int(trace.rejected.sum()),
        }
        for trace in traces
    ]


def _plain(value: float | np.floating[Any]) -> float | None:
    return float(value) if math.isfinite(value) else None
