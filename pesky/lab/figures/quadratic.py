"""The paper's Figure 3: loss and learning rate on the one-dimensional noisy quadratic."""

import numpy as np

from pesky.errors import check_number
from pesky.lab.comparison import PAPER_METHODS, compare, summary
from pesky.lab.figures.picture import Picture, legend_above, line_style, new_figure, tidy
from pesky.quadratic import NoisyQuadratic

__all__ = ["make"]

FARTHEST = 1e100  # beyond it losses overflow, and there is nothing to draw


def make(*, steps: int = 1000, runs: int = 1000, start: float = 5.0, seed: int = 0) -> Picture:
    """Draw median excess loss and median rate over `runs` runs, h = 1 and sigma = 1."""
    start = check_number("start", start, least=-FARTHEST, most=FARTHEST)
    problem = NoisyQuadratic(curvature=1.0, noise=1.0, start=start)
    traces = compare(problem, PAPER_METHODS, steps=steps, runs=runs, seed=seed)
    time = np.arange(1, steps + 1)
    figure, (above, below) = new_figure(7, 7.6, nrows=2, sharex=True, height_ratios=(3, 2))
    for trace in traces:
        above.loglog(time, trace.median_excess()[1:], **line_style(trace.name))
        below.loglog(time, trace.median_rate(), **line_style(trace.name))
    tidy(above, x="", y="loss above its minimum (median)")
    tidy(below, x="step", y="learning rate (median)")
    above.set_xlim(1, max(steps, 2))  # one step alone would leave the axis no width
    legend_above(figure, above, columns=3)
    numbers = {
        "steps": steps,
        "runs": runs,
        "start": start,
        "seed": seed,
        "methods": summary(traces),
    }
    return Picture("quadratic", figure, numbers)
