"""The paper's Figure 8: how each method's learning rates evolve."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pesky.errors import check_count
from pesky.lab import paper
from pesky.lab.benchmarks import BENCHMARKS, Benchmark, Task, method_named
from pesky.lab.figures.picture import METHOD_STYLES, Picture, legend_above, new_figure, tidy
from pesky.lab.race.recorded import Recorded
from pesky.lab.race.rows import Store
from pesky.lab.runs.seeds import run_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["make"]

_BENCHMARKS = ("C0", "M0")
_MIN, _MEDIAN, _MAX = 0, 2, 4  # of the trace's five numbers


def make(
    store: Store | None,
    *,
    folder: str | Path | None = None,
    runs: int = 10,
    epochs: int = 6,
    say: Callable[[str], None] = lambda text: None,
) -> Picture:
    """Train every method at its winning setting and draw its rates, median over `runs` runs.

    The setting is the one that won in `store`, or the paper's where the store has none.
    """
    check_count("runs", runs)
    check_count("epochs", epochs)
    figure, axes = new_figure(11, 5.4, ncols=2)
    numbers: dict[str, Any] = {"runs": runs, "epochs": epochs}
    for panel, name in zip(axes, _BENCHMARKS, strict=True):
        benchmark = BENCHMARKS[name]
        task = benchmark.task(folder)
        numbers[name] = {}
        for method, settings in _contestants(store, name).items():
            say(f"{name} {method}")
            traces = _traces(benchmark, task, method, settings, runs, epochs)
            numbers[name][method] = _draw(panel, method, traces, len(task.train_inputs))
        panel.set_ylim(1e-8, 1e3)
        panel.set_title(f"{name} {list(benchmark.layers)}", fontweight="bold")
        tidy(panel, x="epoch", y="learning rate")
    legend_above(figure, axes[1], columns=8)
    return Picture("rates", figure, numbers)


def _contestants(store: Store | None, name: str) -> dict[str, dict[str, str]]:
    found = {} if store is None else Recorded(store, name).winners()
    listed = {method: paper.BEST_SETTINGS[name].get(method, {}) for method in paper.TRAIN[name]}
    return {method: found.get(method, settings) for method, settings in listed.items()}


def _traces(
    benchmark: Benchmark, task: Task, method: str, settings: dict[str, str], runs: int, epochs: int
) -> dict[str, NDArray[Any]]:
    made = method_named(method, settings, len(task.train_inputs))

    results = run_seeds(benchmark, task, made, seeds=runs, epochs=epochs)
    traces = [result.fit.trace for result in results]
    shortest = min(len(trace["step"]) for trace in traces)  # of a run that diverged
    median = np.median([trace["rate"][:shortest] for trace in traces], axis=0)
    return {"step": traces[0]["step"][:shortest], "rate": median}


def _draw(axes: "Axes", method: str, trace: dict[str, NDArray[Any]], samples: int) -> dict[str, float]:
    time, rate = trace["step"] / samples, trace["rate"]
    style = METHOD_STYLES[method]
    shown = np.where(rate > 0, rate, np.nan)  # a rate of zero has no place on a logarithmic axis
    below = np.finfo(np.float32).tiny  # where the band of a method that has rates of zero begins
    low = np.where(np.isnan(shown[:, _MIN]), below, shown[:, _MIN])
    axes.fill_between(time, low, shown[:, _MAX], color=style["color"], alpha=0.12, linewidth=0)
    axes.loglog(time, shown[:, _MEDIAN], markevery=5, markersize=5, label=method, **style)
    return {"first_median": float(rate[0, _MEDIAN]), "last_median": float(rate[-1, _MEDIAN])}
