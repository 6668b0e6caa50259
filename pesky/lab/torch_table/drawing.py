"""Pictures of the table: losses against steps and seconds, and VSGD among the rates of its rivals."""

import statistics
from collections.abc import Iterable, Sequence
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
from pesky.lab.runs.settings import parse_settings
from pesky.lab.torch_table.contestants import CONTESTANTS, Contestant
from pesky.lab.torch_table.rows import Point, Row, Store, parse_curve
from pesky.lab.torch_table.table import TUNING_SEED, TaskRows, TorchTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fan", "losses"]

_STYLES: dict[str, dict[str, Any]] = {
    "vsgd": {"color": ORANGE, "linewidth": 2.8, "zorder": 5},
    "vsgd-paper": {"color": "#E69F00", "linestyle": (0, (5, 1.5)), "zorder": 4},
    "adam": {"color": BLUE, "linewidth": 2.0, "zorder": 3},
    "prodigy": {"color": GREEN, "linestyle": (0, (5, 1, 1, 1))},
    "dog": {"color": PURPLE, "linestyle": (0, (1.5, 1))},
    "schedule-free": {"color": "0.35", "linestyle": (0, (6, 2))},
    "sgd-tuned": {"color": "black", "linewidth": 1.2},
    "adam-tuned": {"color": "#56B4E9", "linewidth": 1.6},
}
_FAN = {"sgd-tuned": ("black", "SGD with momentum"), "adam-tuned": (BLUE, "Adam")}
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
    """Draw VSGD over all rates of its tuned rivals, on the first task that has them all at one seed."""
    for rows in table.rows(store):
        ours = rows.row(CONTESTANTS["vsgd"], CONTESTANTS["vsgd"].settings[0], TUNING_SEED)
        rivals = {name: _grid(rows, CONTESTANTS[name]) for name in _FAN}
        if ours is not None and all(rivals.values()):
            return _draw_fan(rows, ours, rivals)
    return None


def _grid(rows: TaskRows, contestant: Contestant) -> dict[str, Row]:
    """Return the run of each rate; none if one is missing."""
    found = {setting: rows.row(contestant, setting, TUNING_SEED) for setting in contestant.settings}
    present = {setting: row for setting, row in found.items() if row is not None}
    return present if len(present) == len(found) else {}


def _draw_fan(rows: TaskRows, ours: Row, rivals: dict[str, dict[str, Row]]) -> Picture:
    figure, axes = new_figure(8, 5.4)
    drawn = []
    for name, grid in rivals.items():
        colour, title = _FAN[name]
        first, last = (parse_settings(list(grid)[place])["lr"] for place in (0, -1))
        for number, row in enumerate(grid.values()):
            points = parse_curve(row.curve)
            drawn.append(points)
            shade = 0.35 + 0.65 * number / max(len(grid) - 1, 1)
            label = f"{title}, rates {first} (pale) to {last}" if number == len(grid) - 1 else None
            axes.loglog(*_xy(points), color=colour, alpha=shade, linewidth=1.2, label=label)
    points = parse_curve(ours.curve)
    drawn.append(points)
    axes.loglog(*_xy(points), label="VSGD, nothing set", **_STYLES["vsgd"])
    _keep_in_view(axes, drawn)
    tidy(axes, x=f"step ({rows.task.title})", y="loss on batches (mean)")
    legend_above(figure, axes, columns=2)
    numbers = {
        "task": rows.task.name,
        "steps": rows.steps,
        "seed": TUNING_SEED,
        "settings": {name: list(grid) for name, grid in rivals.items()},
    }
    return Picture("torch-fan", figure, numbers)


def _xy(points: Sequence[Point]) -> tuple[list[int], list[float]]:
    return [point.step for point in points], [point.loss for point in points]


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
