"""The paper's Figure 2: trajectories in a noisy two-dimensional bowl."""

from typing import TYPE_CHECKING

import numpy as np

from pesky.errors import check_number
from pesky.lab.comparison import compare, summary
from pesky.lab.figures.picture import (
    BLUE,
    GREEN,
    ORANGE,
    PLAIN_BOX,
    PURPLE,
    Picture,
    new_figure,
    tidy,
)
from pesky.quadratic import SGD, VSGD, Method, NoisyQuadratic, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["make"]

_METHODS: tuple[Method, ...] = (SGD(0.1), SGD(0.01), SGD(0.1, cooling="1/t"), VSGD())
_COLOURS = (BLUE, GREEN, PURPLE, ORANGE)


def make(*, ratio: float = 10.0, steps: int = 400, runs: int = 1000, seed: int = 0) -> Picture:
    """Draw the first of `runs` runs of `steps` steps; the curvatures are 1 and `ratio`."""
    ratio = check_number("ratio", ratio, above=0, most=1e100)
    problem = NoisyQuadratic(curvature=[1.0, ratio], noise=[0.3, 0.3], start=[-2.6, 1.6])
    traces = compare(problem, _METHODS, steps=steps, runs=runs, seed=seed)
    figure, panels = new_figure(8, 6.4, nrows=2, ncols=2, sharex=True, sharey=True)
    for axes, trace, colour in zip(panels.flat, traces, _COLOURS, strict=True):
        _draw_bowl(axes, ratio)
        _draw_path(axes, trace, colour)
        axes.set_title(trace.name, color=colour, fontweight="bold")
    for axes in panels[1]:
        tidy(axes, x="θ₁ (curvature 1)", y="")
    for axes in panels[:, 0]:
        axes.set_ylabel(f"θ₂ (curvature {ratio:g})")
    numbers = {
        "ratio": ratio,
        "steps": steps,
        "runs": runs,
        "seed": seed,
        "methods": summary(traces),
    }
    return Picture("bowl", figure, numbers)


def _draw_bowl(axes: "Axes", ratio: float) -> None:
    x, y = np.meshgrid(np.linspace(-3, 1.2, 200), np.linspace(-1.2, 1.9, 200))
    loss = (x**2 + ratio * y**2) / 2
    axes.contour(x, y, loss, levels=np.geomspace(0.02, 40, 12), colors="0.75", linewidths=0.8)
    axes.grid(False)
    axes.plot(0, 0, marker="*", color="black", markersize=13, zorder=6)


def _draw_path(axes: "Axes", trace: Trace, colour: str) -> None:
    path = trace.position[:, 0]
    axes.plot(*path.T, color=colour, linewidth=1, alpha=0.6)
    axes.plot(*path.T, ".", color=colour, markersize=4, alpha=0.8)
    axes.plot(*path[-1], "o", color=colour, markersize=10, markeredgecolor="white", zorder=7)
    left = trace.median_excess()[-1]
    text = f"excess loss after {len(path) - 1} steps:\n{left:.2g} (median of {trace.rejected.size} runs)"
    axes.text(0.98, 0.97, text, transform=axes.transAxes, ha="right", va="top", bbox=PLAIN_BOX)
