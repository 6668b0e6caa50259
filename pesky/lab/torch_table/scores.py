"""What rows say over many tasks: scores between start and best, their profile, ranks, and failures.

Only contestants that are ranked are compared, on tasks that all of them have run. A task on which all
of them end within 2 % of the best does not count.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pesky.lab.runs.means import Part
from pesky.lab.torch_table.contestants import Contestant
from pesky.lab.torch_table.rows import Row, parse_curve, parse_mark
from pesky.lab.torch_table.table import Standing, begun_names, rank

__all__ = [
    "Ends",
    "Failure",
    "Scores",
    "cost_per_step",
    "ends_of",
    "failures",
    "is_level",
    "score",
    "scores_of",
]

_LEVEL = 0.02  # of the best: closer than this, nobody is better
_ROUNDING = 1e-4  # of costs in rows
_LEAST_GAIN = 0.5  # of the median contestant's

Standings = Mapping[str, Sequence[Standing]]  # by task


class Ends(NamedTuple):
    """Where a task begins and where contestants end, by name; infinite: diverged or too slow."""

    start: float | None  # None: rows do not tell
    by_name: dict[str, float]


@dataclass(frozen=True)
class Scores:
    """The scores of every contestant, by task, and how it ranks; 0 is the best, 1 the start."""

    counted: list[str]  # tasks
    level: list[str]  # tasks that do not count
    unfinished: list[str]  # tasks that not all have run, or whose passes have not been counted
    scores: dict[str, dict[str, float]]  # by contestant and task; without tasks of unknown start
    ranks: dict[str, float]  # averages, best first
    firsts: dict[str, int]  # tasks on which nobody is better

    def share(self, name: str, most: float) -> float | None:
        """Return on which share of the tasks a score is at most so much: a point of its profile."""
        found = self.scores[name].values()
        return statistics.fmean(one <= most for one in found) if found else None


@dataclass(frozen=True)
class Failure:
    """A contestant that fails on a task, and why."""

    contestant: Contestant
    task: str
    reason: str


def score(end: float, best: float, start: float) -> float:
    """Return (end - best) / (start - best); where nobody gets below the start, all but the best fail.

    >>> score(end=1.5, best=1.0, start=3.0)
    0.25
    """
    if end == best:
        return 0.0
    return (end - best) / (start - best) if start > best else math.inf


def is_level(ends: Ends) -> bool:
    """Whether all end so close to each other that nobody is better."""
    best, worst = min(ends.by_name.values()), max(ends.by_name.values())
    return worst < math.inf and worst - best <= _LEVEL * abs(best)


def ends_of(standings: Sequence[Standing], part: Part, *, equal_cost: bool = False) -> Ends:
    """Return where those that are ranked and have all their runs end, or are at Adam's cost."""
    places: dict[str, float] = {}
    for one in _compared(standings):
        if one.is_complete:
            place = _place_at_equal_cost(one, part) if equal_cost else one.place(part)
            if place is not None:
                places[one.contestant.name] = place
    return Ends(_start(standings, part), places)


def scores_of(standings: Standings, part: Part, *, equal_cost: bool = False) -> Scores:
    """Compare all contestants that have begun, on the tasks that they all have run."""
    begun = begun_names({task: _compared(of) for task, of in standings.items()})
    every = {task: ends_of(of, part, equal_cost=equal_cost) for task, of in standings.items()}
    compared = {task: ends for task, ends in every.items() if begun and set(begun) == set(ends.by_name)}
    level = [task for task, ends in compared.items() if is_level(ends)]
    counted = {task: ends for task, ends in compared.items() if task not in level}
    ranks = {
        name: statistics.fmean(rank(ends.by_name[name], ends.by_name) for ends in counted.values())
        for name in begun
        if counted
    }
    return Scores(
        list(counted),
        level,
        [task for task in standings if task not in compared],
        {name: _scores(name, counted) for name in begun},
        dict(sorted(ranks.items(), key=lambda item: item[1])),
        {
            name: sum(ends.by_name[name] == min(ends.by_name.values()) for ends in counted.values())
            for name in begun
        },
    )


def failures(standings: Standings) -> list[Failure]:
    """Return who fails where by the training loss, ours first, on tasks that count."""
    found = []
    for task, of_task in standings.items():
        ends = ends_of(of_task, "train")
        if not ends.by_name or is_level(ends):
            continue
        for one in _compared(of_task):
            if one.is_complete:
                reason = _failure(one, ends)
                found += [Failure(one.contestant, task, reason)] if reason else []
    return sorted(found, key=lambda failure: not failure.contestant.is_ours)


def cost_per_step(standings: Standings, name: str) -> float | None:
    """Return what a contestant's steps cost on the average, in passes; None: not counted."""
    found = [
        points[-1].cost / points[-1].step
        for of_task in standings.values()
        for one in of_task
        for run in one.runs
        if one.contestant.name == name and (points := parse_curve(run.curve)) and points[-1].cost
    ]
    return statistics.fmean(found) if found else None


def _compared(standings: Sequence[Standing]) -> list[Standing]:
    return [one for one in standings if one.contestant.is_compared]


def _scores(name: str, counted: Mapping[str, Ends]) -> dict[str, float]:
    return {
        task: score(ends.by_name[name], min(ends.by_name.values()), ends.start)
        for task, ends in counted.items()
        if ends.start is not None
    }


def _start(standings: Sequence[Standing], part: Part) -> float | None:
    """Return the number before training; rows of old know only their first batch's loss."""
    for one in standings:
        marks = [parse_mark(run.curve, "start") for run in one.runs]
        known = [getattr(mark, part) for mark in marks if mark is not None]
        if marks and len(known) == len(marks):
            return statistics.fmean(known)
    if part == "train":
        for one in standings:
            curves = [parse_curve(run.curve) for run in one.runs]
            if curves and all(curves):
                return statistics.fmean(points[0].loss for points in curves)
    return None


def _place_at_equal_cost(standing: Standing, part: Part) -> float | None:
    """Return where a contestant is after as many passes as Adam's run takes; None: not counted."""
    if standing.place(part) == math.inf:
        return math.inf
    found = [_at_equal_cost(standing.contestant, run, part) for run in standing.runs]
    known = [number for number in found if number is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


def _at_equal_cost(contestant: Contestant, run: Row, part: Part) -> float | None:
    mark = parse_mark(run.curve, "equal-cost")
    if mark is not None:
        number: float = getattr(mark, part)
        return number
    at_end: float | None = getattr(run, part)
    points = parse_curve(run.curve)
    cost = points[-1].cost if points else None
    if cost is None:  # a row of old; only ours take more passes than one forward and one backward
        return None if contestant.is_ours else at_end
    return at_end if cost <= run.steps_done * (1 + _ROUNDING) else None


def _failure(standing: Standing, ends: Ends) -> str | None:
    runs = len(standing.runs)
    if standing.diverged:
        return f"diverged in {len(standing.diverged)} of {runs} runs"
    if standing.too_slow:
        return f"too slow in {len(standing.too_slow)} of {runs} runs"
    end = ends.by_name[standing.contestant.name]
    if ends.start is None:
        return None
    if end > ends.start:
        return "ends above its start"
    median = statistics.median(ends.start - other for other in ends.by_name.values())
    if ends.start - end < _LEAST_GAIN * median:
        return "gains less than half of what the median contestant gains"
    return None
