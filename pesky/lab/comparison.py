"""Several methods on one noisy quadratic: from their names to a table of results."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pesky.errors import InputError
from pesky.lab.plain import finite_or_none
from pesky.quadratic import SGD, VSGD, Method, NoisyQuadratic, Oracle, Trace, simulate
from pesky.quadratic.simulation import check_size

__all__ = ["PAPER_METHODS", "compare", "methods_from_text", "summary"]

_NUMBER = r"(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
_SCHEDULE = re.compile(rf"sgd:{_NUMBER}(?:(/t)|/\(1\+{_NUMBER}t\))?")
_FORMS = "vsgd-l, vsgd-b, vsgd-g, oracle-l, oracle-g, sgd:0.2, sgd:0.2/t or sgd:0.2/(1+0.01t)"

_VSGD = VSGD()

# The contestants of the paper's Figures 3 and 4.
PAPER_METHODS: tuple[Method, ...] = (
    SGD(1.0),
    SGD(0.2),
    SGD(1.0, cooling="1/t"),
    SGD(0.2, cooling="1/t"),
    _VSGD,
    Oracle(),
)


def methods_from_text(text: str, *, blocks: Sequence[int] = (), adaptive: VSGD = _VSGD) -> list[Method]:
    """Return the methods that a user wrote with commas between.

    `blocks` are the block sizes of vsgd-b; every vsgd has the other settings of `adaptive`.

    >>> [method.name for method in methods_from_text("vsgd-l, sgd:0.2/t")]
    ['vSGD-l', 'SGD 0.2/t']
    """
    methods = [_method_from_text(part, tuple(blocks), adaptive) for part in text.split(",")]
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"methods: {name} is there more than once in {text!r}; name each once")
    if blocks and "vSGD-b" not in names:
        raise InputError(f"blocks are for vsgd-b only, which is not among the methods {text!r}")
    if adaptive != _VSGD and not any(isinstance(method, VSGD) for method in methods):
        raise InputError(f"methods: the settings given are for vsgd, which is not in {text!r}")
    return methods


def _method_from_text(text: str, blocks: tuple[int, ...], adaptive: VSGD) -> Method:
    plain = text.strip().lower()
    fixed: dict[str, Method] = {
        "vsgd-l": adaptive,
        "vsgd-g": replace(adaptive, granularity="global"),
        "oracle-l": Oracle("element"),
        "oracle-g": Oracle("global"),
    }
    if plain in fixed:
        return fixed[plain]
    if plain == "vsgd-b":
        if not blocks:
            raise InputError("blocks: vsgd-b needs the sizes of its blocks, such as 2,1")
        return replace(adaptive, granularity="block", blocks=blocks)
    match = _SCHEDULE.fullmatch(plain)
    if match is None:
        raise InputError(f"methods: {text!r} is unknown; write {_FORMS}")
    eta0, over_t, gamma = match.groups()
    try:
        return SGD(float(eta0), gamma=float(gamma or 0), cooling="1/t" if over_t else "none")
    except InputError as error:
        raise InputError(f"methods: in {text!r} {error}") from None


def compare(
    problem: NoisyQuadratic,
    methods: Sequence[Method],
    *,
    steps: int,
    runs: int,
    seed: int,
    progress: Callable[[Sequence[Method]], Iterable[Method]] = iter,
) -> list[Trace]:
    """Run every method on the same samples; `progress` may show how far the loop over them is."""
    check_size(problem, steps=steps, runs=runs, traces=len(methods))
    return [simulate(problem, method, steps=steps, runs=runs, seed=seed) for method in progress(methods)]


@np.errstate(over="ignore", invalid="ignore")  # a mean of huge losses may overflow
def summary(traces: Iterable[Trace]) -> list[dict[str, Any]]:
    """Return the numbers that matter of each trace, ready for JSON: None is for what is not finite."""
    return [
        {
            "name": trace.name,
            "final_median_excess_loss": finite_or_none(trace.median_excess()[-1]),
            "mean_excess_loss": finite_or_none(np.mean(trace.excess_loss)),
            "mean_loss": finite_or_none(np.mean(trace.loss)),
            "final_median_rate": finite_or_none(trace.median_rate()[-1]),
            "rejected_samples": int(trace.rejected.sum()),
        }
        for trace in traces
    ]
