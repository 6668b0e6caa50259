"""The critical C against the number of parameters, as a picture and in words."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pesky.lab.figures.critical.search import CRITICAL
from pesky.lab.figures.critical.stability import DEFINITION
from pesky.lab.figures.picture import BLUE, GREEN, PLAIN_BOX, Picture, legend_above, new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "plain", "shown"]

# Marker of a benchmark, marker of XOR: where C is known, and where only a bound is.
_MARKERS = {"found": ("o", "*"), "below 1": ("v", "v"), "not bounded by the grid": ("^", "^")}


def draw(numbers: dict[str, Any]) -> Picture:
    """Draw the rows of the study."""
    figure, axes = new_figure(7.4, 6)
    rows = numbers["setups"]
    ends = np.array(
        [min(row["parameters"] for row in rows) / 2, max(row["parameters"] for row in rows) * 2]
    )
    axes.loglog(ends, ends / 10, color="black", linestyle=":", label="C = d/10, the paper's choice")
    for is_xor in (False, True):
        chosen = [row for row in rows if row["name"].startswith("XOR") == is_xor]
        label = "XOR, one hidden layer" if is_xor else "benchmark"
        for place, row in enumerate(chosen):
            _draw_setup(axes, row, is_xor, label if place == 0 else None)
    axes.set_xlim(*ends)
    axes.set_ylim(bottom=0.4)
    below = any(row["critical"] is None for row in rows)
    tidy(axes, x="parameters d", y="critical C" + " (triangle at the bottom: below 1)" * below)
    figure.supxlabel(_caption(numbers["runs"]), fontsize=9, color="0.35")
    legend_above(figure, axes, columns=3)
    return Picture("critical", figure, numbers)


def _draw_setup(axes: "Axes", row: dict[str, Any], is_xor: bool, label: str | None) -> None:
    color = GREEN if is_xor else BLUE
    known = row["status"] == "found"
    place = (row["parameters"], row["critical"] or 1.0)
    axes.plot(
        *place,
        color=color,
        linestyle="none",
        marker=_MARKERS[row["status"]][is_xor],
        markersize=13 if is_xor and known else 8,
        markerfacecolor=color if known else "white",
        label=label,
    )
    text = f"{row['layers'][1]:,}" if is_xor else row["name"]
    axes.annotate(
        text,
        place,
        xytext=(0, 9 if is_xor else -9),  # XOR tends to be above the line, benchmarks below
        textcoords="offset points",
        va="bottom" if is_xor else "top",
        ha="center",
        fontsize=9,
        bbox=PLAIN_BOX,
        zorder=1,
    )


def _caption(runs: int) -> str:
    words = f"{CRITICAL}\n{DEFINITION}"
    return words.replace("the runs", f"{runs} runs").replace(", or its mean", ",\nor its mean")


def shown(row: dict[str, Any]) -> str:
    """Return a setup's critical C, or the bound known, in words."""
    if row["critical"] is None:
        return str(row["status"])
    return plain(row["critical"]) if row["status"] == "found" else f"at least {plain(row['critical'])}"


def plain(factor: float) -> str:
    """Return a C as people read it."""
    return f"{factor:,.0f}" if factor >= 10 else f"{factor:.3g}"
