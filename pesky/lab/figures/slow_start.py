"""The paper's study of C: how the slow start matters for vSGD, over eight orders of magnitude."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pesky.errors import InputError, check_count
from pesky.lab.benchmarks import BENCHMARKS, GRANULARITIES, Benchmark, Task
from pesky.lab.figures.picture import METHOD_STYLES, Picture, legend_above, new_figure, tidy
from pesky.lab.plain import finite_or_none
from pesky.lab.runs.seeds import EpochReport, run_once
from pesky.lab.runs.threads import in_threads
from pesky.online import VSGD
from pesky.rule import slow_start_factor

__all__ = ["FACTORS", "make"]

FACTORS = tuple(10.0**power for power in range(9))
_EPOCHS = (1, 3, 6)


def make(
    benchmarks: Sequence[str] = ("M0", "M1", "M2"),
    *,
    folder: str | Path | None = None,
    runs: int = 2,
    factors: Sequence[float] = FACTORS,
    say: Callable[[str], None] = lambda text: None,
) -> Picture:
    """Draw the test error after 1, 3 and 6 epochs against C; a run that diverged has none."""
    check_count("runs", runs)
    for name in benchmarks:
        if name not in BENCHMARKS:
            raise InputError(f"benchmarks must be of {', '.join(BENCHMARKS)}; got {name!r}")
    figure, axes = new_figure(5 * len(benchmarks), 5, ncols=len(benchmarks), squeeze=False)
    numbers: dict[str, Any] = {"runs": runs, "factors": list(factors), "epochs": list(_EPOCHS)}
    for panel, name in zip(axes.flat, benchmarks, strict=True):
        benchmark = BENCHMARKS[name]
        task = benchmark.task(folder)
        numbers[name] = {}
        for variant in GRANULARITIES:
            say(f"{name} {variant}")
            errors = _study(benchmark, task, variant, factors, runs)
            numbers[name][variant] = [[finite_or_none(value) for value in row] for row in errors]
            for column, epochs in enumerate(_EPOCHS):
                label = variant if epochs == _EPOCHS[-1] else None
                alpha = (0.25, 0.5, 1.0)[column]
                panel.loglog(
                    factors, errors[:, column], alpha=alpha, label=label, **METHOD_STYLES[variant]
                )
        ours = slow_start_factor(benchmark.network(0).parameters)
        panel.axvline(ours, color="0.5", linestyle=":")
        panel.set_title(f"{name} (dotted: C = d/10)", fontweight="bold")
        tidy(panel, x="C", y="test error, % (faint: after 1 and 3 epochs)")
    legend_above(figure, axes.flat[0], columns=3)
    return Picture("slow-start", figure, numbers)


def _study(
    benchmark: Benchmark, task: Task, variant: str, factors: Sequence[float], runs: int
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return the median test error, (factors, epochs); NaN where most runs diverged before."""

    def errors(run: tuple[float, int], stop: threading.Event) -> list[float]:
        factor, seed = run
        method = VSGD(GRANULARITIES[variant], slow_start=factor)
        found = [np.nan] * len(_EPOCHS)

        def note(report: EpochReport) -> None:
            if report.epoch in _EPOCHS:
                found[_EPOCHS.index(report.epoch)] = report.test

        run_once(benchmark, task, method, seed=seed, epochs=_EPOCHS[-1], report=note, stop=stop)
        return found

    found = in_threads(errors, [(factor, seed) for factor in factors for seed in range(runs)])
    table = np.array(found).reshape(len(factors), runs, len(_EPOCHS))
    infinite = np.where(np.isnan(table), np.inf, table)
    middle = np.median(infinite, axis=1)
    return np.where(np.isinf(middle), np.nan, middle)
