"""The paper's Figures 5, 6 and 7: training error against test error of every setting tried."""

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pesky.errors import InputError
from pesky.lab.benchmarks import error_unit
from pesky.lab.figures.picture import METHOD_STYLES, Picture, legend_above, new_figure, tidy
from pesky.lab.race.rows import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pesky.lab.race.recorded import Recorded

__all__ = ["VIEWS", "View", "make"]

View = Literal["mnist", "cifar", "global"]
VIEWS: dict[View, tuple[str, ...]] = {
    "mnist": ("M0", "M1", "M2"),
    "cifar": ("C0", "C1", "CR"),
    "global": ("M0", "M1", "M2", "C0", "C1", "CR"),
}
_NEAR = 1.3  # times the best test error: winners in the region of interest, beside vSGD
_ZOOM = 1.5  # and how much wider than these the picture is


def make(store: Store, *, view: View) -> Picture:
    """Draw all complete settings in a store; the winner of each method is large, vSGD is black."""
    from pesky.lab.race.recorded import Recorded

    recorded = {name: Recorded(store, name) for name in VIEWS[view]}
    present = {name: one for name, one in recorded.items() if one.winners()}
    if not present:
        names = " ".join(VIEWS[view])
        raise InputError(f"there are no rows for this figure yet; run: pesky race {names}")
    columns = min(3, len(present))
    rows = -(-len(present) // columns)
    figure, axes = new_figure(4.6 * columns, 4.6 * rows + 0.6, nrows=rows, ncols=columns, squeeze=False)
    numbers: dict[str, Any] = {
        "view": view,
        "missing": [name for name in recorded if name not in present],
    }
    for panel, (name, one) in zip(axes.flat, present.items(), strict=False):
        numbers[name] = _draw(panel, name, one, zoomed=view != "global")
    for panel in list(axes.flat)[len(present) :]:
        panel.set_visible(False)
    _legend(figure, axes.flat[0], present, columns=min(8, 3 * columns))
    return Picture(f"errors-{view}", figure, numbers)


def _draw(axes: "Axes", name: str, recorded: "Recorded", *, zoomed: bool) -> dict[str, Any]:
    points = {
        method: np.array(
            [
                (one.mean("train"), one.mean("test"))
                for one in recorded.settings
                if one.method == method and one.complete
            ]
        ).reshape(-1, 2)
        for method in recorded.methods
    }
    winners = {}
    for method, where in points.items():
        style = METHOD_STYLES[method]
        axes.plot(*where.T, linestyle="none", markersize=4, alpha=0.6, **style)
        best = recorded.winner(method)
        if best is not None:
            winners[method] = (best.mean("train"), best.mean("test"))
            large: dict[str, Any] = {
                "markersize": 12,
                "markeredgewidth": 1.5,
                "zorder": 4,
            }  # above the small ones
            axes.plot(*winners[method], linestyle="none", **large, **style)
    unit = error_unit(recorded.loss)
    tidy(axes, x=f"training error, {unit}", y=f"test error, {unit}")
    axes.set_title(name, fontweight="bold")
    outside = 0
    if zoomed:
        outside = _zoom(axes, points, winners)
    else:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.loglog()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
    return {
        "settings": {method: len(where) for method, where in points.items()},
        "winners": {method: list(errors) for method, errors in winners.items()},
        "outside_the_picture": outside,
    }


def _zoom(axes: "Axes", points: dict[str, Any], winners: dict[str, tuple[float, float]]) -> int:
    """Show the neighbourhood of the winners, and say how many points are beyond."""
    best = min(test for _, test in winners.values())
    near = np.array(
        [
            errors
            for method, errors in winners.items()
            if method.startswith("vsgd") or errors[1] <= _NEAR * best
        ]
    )
    low, high = near.min(axis=0), near.max(axis=0)
    margin = np.maximum((high - low) * (_ZOOM - 1), 0.02 * high)
    bottom, top = np.maximum(low - margin, 0), high + margin
    axes.set_xlim(bottom[0], top[0])
    axes.set_ylim(bottom[1], top[1])
    everything = np.concatenate(list(points.values()))
    outside = int(np.sum(np.any((everything < bottom) | (everything > top), axis=1)))
    text = f"{outside} setting{'s' * (outside != 1)} beyond"
    axes.text(0.98, 0.02, text, transform=axes.transAxes, ha="right", color="0.4")
    return outside


def _legend(figure: Any, axes: "Axes", present: "dict[str, Recorded]", columns: int) -> None:
    methods = dict.fromkeys(method for one in present.values() for method in one.methods)
    for method in methods:
        axes.plot([], [], linestyle="none", markersize=9, label=method, **METHOD_STYLES[method])
    legend_above(figure, axes, columns=columns)
