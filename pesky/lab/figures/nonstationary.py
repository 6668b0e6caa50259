"""The paper's Figure 4: the optimum jumps, and only an adaptive rate can follow."""

from typing import Any

import numpy as np

from pesky.errors import InputError, check_count, check_number
from pesky.lab.comparison import PAPER_METHODS, compare, summary
from pesky.lab.figures.picture import Picture, legend_above, line_style, new_figure, tidy
from pesky.quadratic import NoisyQuadratic, Trace

__all__ = ["make", "steps_to_rise"]

MOST_STEPS, MOST_JUMPS = 1_000_000, 1000  # more than a figure can show


def make(
    *, jump: float = 3.0, every: int = 300, jumps: int = 5, runs: int = 1000, seed: int = 0
) -> Picture:
    """Draw median loss and rate over `runs` runs.

    The optimum jumps `jumps` times, by `jump` sigma, up or down.
    """
    jump = check_number("jump", jump, above=0)
    every = check_count("every", every, least=2)
    jumps = check_count("jumps", jumps, most=MOST_JUMPS)
    problem = NoisyQuadratic(noise=1.0, change_every=every, optimum_jump=jump)
    steps = every * (jumps + 1)
    if steps > MOST_STEPS:
        raise InputError(f"every={every} and jumps={jumps} make {steps} steps; at most {MOST_STEPS}")
    traces = compare(problem, PAPER_METHODS, steps=steps, runs=runs, seed=seed)
    figure, (above, below) = new_figure(9, 7.6, nrows=2, sharex=True, height_ratios=(3, 2))
    for trace in traces:
        above.semilogy(trace.median_excess(), **line_style(trace.name))
        below.semilogy(trace.median_rate(), **line_style(trace.name))
    for axes in (above, below):
        for change in range(every, steps, every):
            axes.axvline(change, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    tidy(above, x="", y="loss above its minimum (median)")
    tidy(below, x="step (dotted lines: the optimum jumps)", y="learning rate (median)")
    above.set_xlim(0, steps)
    legend_above(figure, above, columns=3)
    adaptive = next(trace for trace in traces if trace.name == "vSGD-l")
    numbers = {
        "jump": jump,
        "every": every,
        "jumps": jumps,
        "runs": runs,
        "seed": seed,
        "methods": summary(traces),
        "tenfold_rise": _rise_numbers(steps_to_rise(adaptive, every=every, factor=10.0)),
    }
    return Picture("nonstationary", figure, numbers)


def steps_to_rise(trace: Trace, *, every: int, factor: float) -> np.ndarray[Any, Any]:
    """Return, for each jump and run, the steps until the rate is `factor` times what it was before.

    Infinity where it never was before the next jump, and where it was 0, which has no tenfold.
    Needs a trace with one parameter.
    """
    rate = trace.rate[:, :, 0]
    counts = []
    for change in range(every, len(rate), every):
        before = rate[change - 1]
        risen = (before > 0) & (rate[change : change + every] >= factor * before)
        counts.append(np.where(risen.any(axis=0), 1.0 + risen.argmax(axis=0), np.inf))
    return np.array(counts)


def _rise_numbers(counts: np.ndarray[Any, Any]) -> dict[str, float | None]:
    median = float(np.median(counts))
    return {
        "median_steps": median if np.isfinite(median) else None,
        "share_of_jumps_with_rise": float(np.mean(np.isfinite(counts))),
    }
