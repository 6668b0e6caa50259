"""Pictures of the table: losses over time, and the untuned among the rates of the tuned."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pesky.lab.figures.picture import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    Picture,
    legend_above,
    new_figure,
    tidy,
)
from pesky.lab.torch_table.contestants import CONTESTANTS
from pesky.lab.torch_table.rows import Point, Row, Store, parse_curve
from pesky.lab.torch_table.table import TUNING_SEED, TaskRows, TorchTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fan", "losses"]

_STYLES: dict[str, dict[str, Any]] = {
    "vsgd": {"color": ORANGE, "linewidth": 2.8, "zorder": 5},
    "vsgd-backward": {"color": ORANGE, "linestyle": (0, (3, 1)), "zorder": 4},
    "vsgd-paper": {"color": "#E69F00", "linestyle": (0, (5, 1.5)), "zorder": 4},
    "adam": {"color": BLUE, "linewidth": 2.0, "zorder": 3},
    "adamw": {"color": BLUE, "linestyle": (0, (2, 1)), "linewidth": 1.2},
    "prodigy": {"color": GREEN, "linestyle": (0, (5, 1, 1, 1))},
    "dog": {"color": PURPLE, "linestyle": (0, (1.5, 1))},
    "schedule-free": {"color": "0.35", "linestyle": (0, (6, 2))},
    "prodigy-plus": {"color": GREEN, "linestyle": (0, (1, 1))},
    "momo": {"color": "#8C510A", "linestyle": (0, (4, 1))},
    "sgd-tuned": {"color": "black", "linewidth": 1.2},
    "adam-tuned": {"color": "#56B4E9", "linewidth": 1.6},
}
# Each a little above or below the middle of its line, so that equal numbers do not hide each other.
_MARKERS: dict[str, tuple[float, dict[str, Any]]] = {
    "vsgd": (0.0, {"color": ORANGE, "marker": "o", "s": 80}),
    "adam": (0.26, {"color": BLUE, "marker": "s", "s": 30}),
    "dog": (-0.26, {"color": PURPLE, "marker": "^", "s": 40}),
    "schedule-free": (-0.13, {"color": "0.25", "marker": "D", "s": 26}),
    "prodigy": (0.13, {"color": GREEN, "marker": "v", "s": 40}),
    "vsgd-paper": (0.0, {"color": "#E69F00", "marker": "x", "s": 30}),
    "vsgd-backward": (0.07, {"color": ORANGE, "marker": "o", "s": 22}),
    "adamw": (0.32, {"color": BLUE, "marker": "+", "s": 30}),
    "prodigy-plus": (0.2, {"color": GREEN, "marker": "1", "s": 40}),
    "momo": (-0.2, {"color": "#8C510A", "marker": "*", "s": 40}),
}
_FAN_WIDTH = 5.6  # inches, so that the letters can be read on a telephone
_EDGE, _EDGE_ROOM = 10.0, 1.06  # of what is far behind, how far does not matter
_FAN_TICKS = (1, 1.5, 2, 3, 5, _EDGE)
_NEXT_TO_NOTHING = 1e-12  # an error of 0 % is the lowest, and nothing can be divided by it
_MARGIN = 1.2  # above and below
_SHORTEST = 1e-4  # seconds: a clock may stand still at first, which logarithms do not like


def losses(table: TorchTable, rows: TaskRows) -> Picture | None:
    """Draw every contestant's mean loss against steps and against seconds; None without any run."""
    curves = {
        contestant.name: mean_curve(rows.standing(contestant, range(table.seeds)).runs)
        for contestant in table.contestants
    }
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return None
    figure, (left, right) = new_figure(11, 5.2, ncols=2, sharey=True)
    for name, points in curves.items():
        style = {"label": CONTESTANTS[name].title, **_STYLES[name]}
        of_losses = [point.loss for point in points]
        left.loglog([point.step for point in points], of_losses, **style)
        right.loglog([max(point.seconds, _SHORTEST) for point in points], of_losses, **style)
    _keep_in_view(left, curves.values())
    tidy(left, x="step", y=f"{rows.task.name}: loss on batches (mean)")
    tidy(right, x="seconds of one core", y="")
    legend_above(figure, left, columns=4)
    numbers = {
        "task": rows.task.name,
        "steps": rows.steps,
        "curves": {name: [list(point) for point in points] for name, points in curves.items()},
    }
    return Picture(f"torch-{rows.task.name}", figure, numbers)


def fan(table: TorchTable, store: Store) -> Picture | None:
    """Draw every task's test numbers, the untuned over all rates of the tuned.

    Tasks that VSGD or one of the tuned has not been run on are left out; None if that is all of them.
    Numbers are divided by the lowest of their task. The untuned are means over the seeds; each rate is
    the run that tuning chose by.
    """
    spreads = [_Spread.of(rows, range(table.seeds)) for rows in table.rows(store)]
    spreads = [one for one in spreads if "vsgd" in one.untuned and all(one.rates.values())]
    return _draw_fan(spreads) if spreads else None


@dataclass(frozen=True)
class _Spread:
    """The test numbers of one task, divided by the lowest; None: diverged."""

    task: str
    untuned: dict[str, float | None]
    rates: dict[str, dict[str, float | None]]  # of each of the tuned, by its setting

    @classmethod
    def of(cls, rows: TaskRows, seeds: Sequence[int]) -> "_Spread":
        """Return those that have been run."""
        untuned: dict[str, float] = {}
        rates: dict[str, dict[str, float]] = {}
        for name, contestant in CONTESTANTS.items():
            if contestant.is_tuned:
                found = {one: rows.row(contestant, one, TUNING_SEED) for one in contestant.settings}
                rates[name] = {one: _test_of(row) for one, row in found.items() if row is not None}
            elif (standing := rows.standing(contestant, seeds)).runs:
                untuned[name] = standing.place("test")
        numbers = [*untuned.values(), *(number for grid in rates.values() for number in grid.values())]
        lowest = max(min(numbers, default=1.0), _NEXT_TO_NOTHING)
        return cls(
            rows.task.name,
            _divided(untuned, lowest),
            {name: _divided(grid, lowest) for name, grid in rates.items()},
        )

    def every_rate(self) -> Iterator[float | None]:
        """Return the numbers of all rates."""
        return chain.from_iterable(grid.values() for grid in self.rates.values())


def _test_of(row: Row) -> float:
    return math.inf if row.test is None else row.test


def _divided(numbers: dict[str, float], lowest: float) -> dict[str, float | None]:
    return {
        name: max(number / lowest, 1.0) if number < math.inf else None
        for name, number in numbers.items()
    }


def _draw_fan(spreads: Sequence[_Spread]) -> Picture:
    figure, axes = new_figure(_FAN_WIDTH, 1.6 + 0.33 * len(spreads))
    for name, (offset, marker) in _MARKERS.items():
        numbers = {place: one.untuned[name] for place, one in enumerate(spreads) if name in one.untuned}
        heights = [place + offset for place in numbers]
        style = {"label": CONTESTANTS[name].title, "zorder": 3, **marker}
        axes.scatter(_in_view(numbers.values()), heights, **style)
    rates = [(number, place) for place, one in enumerate(spreads) for number in one.every_rate()]
    style = {"label": "each rate of SGD, Adam", "marker": "|", "color": "0.7", "s": 130, "zorder": 2}
    axes.scatter(_in_view(number for number, _ in rates), [place for _, place in rates], **style)
    axes.set_xscale("log")
    axes.set_xlim(1 / _EDGE_ROOM, _EDGE * _EDGE_ROOM)
    axes.set_xticks(_FAN_TICKS, [*(f"{tick:g}" for tick in _FAN_TICKS[:-1]), f"{_EDGE:g}+"])
    axes.minorticks_off()
    axes.set_yticks(range(len(spreads)), [spread.task for spread in spreads])
    axes.invert_yaxis()
    tidy(axes, x="test error or loss, divided by the task's lowest", y="")
    legend_above(figure, axes, columns=2)
    return Picture("torch-fan", figure, {"tasks": [asdict(spread) for spread in spreads]})


def _in_view(numbers: Iterable[float | None]) -> list[float]:
    """Put what lies beyond the edge of the picture on it, and what diverged."""
    return [_EDGE if number is None else min(number, _EDGE) for number in numbers]


def mean_curve(runs: Iterable[Row]) -> list[Point]:
    """Return the mean of the runs' curves, at the steps that all of them have a point of."""
    curves = [{point.step: point for point in parse_curve(run.curve)} for run in runs]
    return [
        Point(
            step,
            statistics.fmean(curve[step].seconds for curve in curves),
            statistics.fmean(curve[step].loss for curve in curves),
        )
        for step in (curves[0] if curves else ())
        if all(step in curve for curve in curves)
    ]


def _keep_in_view(axes: "Axes", curves: Iterable[Sequence[Point]]) -> None:
    """Show what most runs stay below, so that one that blows up does not flatten the others."""
    shown = [[point.loss for point in points if point.loss > 0] for points in curves]
    shown = [of_one for of_one in shown if of_one]
    if shown:
        top = statistics.median(max(of_one) for of_one in shown)
        axes.set_ylim(min(min(of_one) for of_one in shown) / _MARGIN, top * _MARGIN)
