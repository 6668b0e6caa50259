"""Which runs the table needs, and what the stored ones say: standings, ranks, and costs of tuning."""

import importlib.util
import math
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pesky.errors import InputError
from pesky.lab.datasets import data_folder
from pesky.lab.runs.completing import Completion, Progress
from pesky.lab.runs.means import PARTS, Mean, Part
from pesky.lab.runs.workers import Workers
from pesky.lab.torch_table.contestants import CONTESTANTS, METHODS, Contestant
from pesky.lab.torch_table.rows import TABLE_VERSION, Row, RunKey, Store
from pesky.lab.torch_table.task import Task
from pesky.lab.torch_table.workers import TaskRun

__all__ = [
    "TUNING_SEED",
    "Number",
    "Standing",
    "TaskRows",
    "TorchTable",
    "average_ranks",
    "begun_names",
    "rank",
]

TUNING_SEED = 0
_PACE = CONTESTANTS["adam"]
_TIMES_SLOWER = 10  # than Adam is too slow
_LEAST_LIMIT = 20.0  # seconds: what is short anyway is never too slow, busy as a machine may be
_QUICKER = 10  # times, of a quick table


class Number(Mean):
    """A mean over seeds."""

    def __str__(self) -> str:
        """Return it as pages and screens show it."""
        return f"{self.mean:.4g}" + (f" ± {self.error:.2g}" if self.runs > 1 else "")


@dataclass(frozen=True)
class Standing:
    """A contestant on a task: its runs at all seeds, and what finding its setting took."""

    contestant: Contestant
    setting: str | None  # None: not known yet, or no setting came to its end
    runs: tuple[Row, ...]
    wanted: int  # runs
    tuning: tuple[Row, ...]
    tuning_wanted: int

    @property
    def is_complete(self) -> bool:
        """Whether all runs are there."""
        return len(self.tuning) == self.tuning_wanted and (
            self.setting is None or len(self.runs) == self.wanted
        )

    @property
    def is_begun(self) -> bool:
        """Whether any run is there."""
        return bool(self.runs or self.tuning)

    @property
    def diverged(self) -> list[Row]:
        """The runs that did not come to their end; of a grid without a winner, all of it."""
        runs = self.tuning if self.setting is None else self.runs
        return [run for run in runs if run.status == "diverged"]

    @property
    def too_slow(self) -> list[Row]:
        """The runs that were stopped because they took too long."""
        return [run for run in self.runs if run.status == "too slow"]

    def number(self, part: Part) -> Number | None:
        """Return the mean over the runs that came to their end."""
        return Number.of([getattr(run, part) for run in self.runs if run.status == "finished"])

    def place(self, part: Part) -> float:
        """Return what it is ranked by: its mean; diverged or too slow in any run is last."""
        number = self.number(part)
        return math.inf if number is None or self.diverged or self.too_slow else number.mean

    @property
    def seconds(self) -> float | None:
        """Seconds of one core a run."""
        return statistics.fmean(run.seconds for run in self.runs) if self.runs else None

    def numbers(self) -> dict[str, Any]:
        """Ready for JSON."""
        means = {part: self.number(part) for part in PARTS}
        return {
            "contestant": self.contestant.name,
            "setting": self.setting,
            "runs": len(self.runs),
            "complete": self.is_complete,
            "diverged_at": [run.diverged_at for run in self.diverged],
            "too_slow": len(self.too_slow),
            **{
                part: None
                if number is None
                else {"mean": number.mean, "error": number.error, "runs": number.runs}
                for part, number in means.items()
            },
            "seconds": self.seconds,
            "tuning_runs": len(self.tuning),
            "tuning_steps": sum(run.steps_done for run in self.tuning),
            "tuning_seconds": round(sum(run.seconds for run in self.tuning), 1),
        }


class TaskRows:
    """The rows of one task on one text or data set."""

    def __init__(self, store: Store, task: Task, steps: int, data: str | None = None) -> None:
        """Read them; without `data`, those of the data that is here, else of which there are most."""
        self.task = task
        self.steps = steps
        rows = store.rows(task=task.name, steps=steps, table_version=TABLE_VERSION)
        self.data = data or _data_of(task, [key.data for key, _ in rows])
        self._rows = {
            (key.method, key.settings, key.seed): row
            for key, row in rows
            if key.data == self.data and key.revision == _revision(key.method)
        }

    def row(self, contestant: Contestant, setting: str, seed: int) -> Row | None:
        """Return one run."""
        return self._rows.get((contestant.method, setting, seed))

    def winner(self, contestant: Contestant) -> str | None:
        """Return the setting with the lowest test number; None if runs are missing, or none finished."""
        if not contestant.is_tuned:
            return contestant.settings[0]
        found: dict[str, float] = {}
        for setting in contestant.settings:
            row = self.row(contestant, setting, TUNING_SEED)
            if row is None:
                return None
            if row.test is not None:
                found[setting] = row.test
        return min(found, key=found.__getitem__, default=None)

    def standing(self, contestant: Contestant, seeds: Sequence[int]) -> Standing:
        """Return how a contestant stands at some seeds."""
        setting = self.winner(contestant)
        grid = contestant.settings if contestant.is_tuned else ()
        return Standing(
            contestant,
            setting,
            self._present((contestant, setting, seed) for seed in seeds if setting is not None),
            len(seeds),
            self._present((contestant, one, TUNING_SEED) for one in grid),
            len(grid),
        )

    def _present(self, wanted: Any) -> tuple[Row, ...]:
        rows = (self.row(*one) for one in wanted)
        return tuple(row for row in rows if row is not None)


def _revision(method: str) -> int | None:
    return METHODS[method].revision if method in METHODS else None


def _data_of(task: Task, stored: Sequence[str]) -> str:
    try:
        here = task.data()
    except InputError:  # a Python without its sources can still show rows
        here = ""
    counts = Counter(stored)
    if here in counts or not counts:
        return here
    return counts.most_common(1)[0][0]


def _pace_key(key: RunKey) -> RunKey:
    """Return the run of Adam's default on the same task at the same seed."""
    (setting,) = _PACE.settings
    return key._replace(method=_PACE.method, settings=setting, revision=METHODS[_PACE.method].revision)


def _limit(store: Store, key: RunKey) -> float:
    """Return after how many seconds a run is too slow; none where Adam has not come to its end.

    Parts of an ablation compete with nobody, and may be slow because they measure more.
    """
    competing = {(one.method, setting) for one in CONTESTANTS.values() for setting in one.settings}
    if (key.method, key.settings) not in competing:
        return math.inf
    row = store.get(_pace_key(key))
    if row is None or row.status != "finished" or key == _pace_key(key):
        return math.inf
    return max(_LEAST_LIMIT, _TIMES_SLOWER * row.seconds)


def _check_package(task: Task) -> None:
    if task.package is not None and importlib.util.find_spec(task.package) is None:
        raise InputError(
            f"the task {task.name} needs {task.package}; run: pip install {task.package}, or leave it "
            "out by --tasks"
        )


@dataclass
class TorchTable:
    """Tasks, contestants and seeds; quick ones take a tenth of the steps."""

    tasks: tuple[Task, ...]
    contestants: tuple[Contestant, ...]
    seeds: int = 3
    quick: bool = False
    watch: Callable[[Progress[RunKey, Row]], None] = field(default=lambda progress: None)

    def steps(self, task: Task) -> int:
        """Return how many steps a run takes."""
        return -(-task.steps // _QUICKER) if self.quick else task.steps

    def contestants_on(self, task: Task) -> list[Contestant]:
        """Return who is run on a task."""
        return [one for one in self.contestants if task.is_first or one.is_compared]

    def key(self, task: Task, contestant: Contestant, setting: str, seed: int) -> RunKey:
        """Return what determines a run here."""
        return RunKey(
            task=task.name,
            data=task.data(),
            method=contestant.method,
            settings=setting,
            steps=self.steps(task),
            seed=seed,
            revision=METHODS[contestant.method].revision,
            table_version=TABLE_VERSION,
        )

    def first_keys(self) -> list[RunKey]:
        """Return the runs at settings that are given, and those that settings are chosen by."""
        return [
            self.key(task, contestant, setting, seed)
            for task in self.tasks
            for contestant in self.contestants_on(task)
            for setting in contestant.settings
            for seed in ((TUNING_SEED,) if contestant.is_tuned else range(self.seeds))
        ]

    def final_keys(self, store: Store) -> list[RunKey]:
        """Return the runs of the settings that won."""
        keys = []
        for task in self.tasks:
            rows = TaskRows(store, task, self.steps(task), task.data())
            for contestant in self.contestants_on(task):
                setting = rows.winner(contestant)
                if setting is not None:
                    keys += [self.key(task, contestant, setting, seed) for seed in range(self.seeds)]
        return keys

    def run(
        self,
        store: Store,
        workers: Workers[TaskRun, Row],
        folder: Path | None,
        stop: threading.Event | None = None,
    ) -> None:
        """Do whatever is not in the store yet. Can be stopped, or killed, and called again."""
        stop = stop or threading.Event()
        tasks = {task.name: task for task in self.tasks}
        for task in self.tasks:  # what is missing is told now, not after hours
            if task.dataset is not None:
                data_folder(task.dataset, folder)
            _check_package(task)

        def do(key: RunKey, stop: threading.Event) -> Row:
            return workers.run(TaskRun(tasks[key.task], key, folder, _limit(store, key)), stop)

        runs = Completion(store, do, workers.places, self.watch)
        first = self.first_keys()
        runs.complete([key for key in first if key == _pace_key(key)], stop)
        runs.complete(first, stop)
        runs.complete(self.final_keys(store), stop)

    def rows(self, store: Store) -> list[TaskRows]:
        """Return what a store holds of every task."""
        return [TaskRows(store, task, self.steps(task)) for task in self.tasks]

    def standings(self, store: Store) -> dict[str, list[Standing]]:
        """Return how the contestants stand on every task."""
        return {
            rows.task.name: [
                rows.standing(one, range(self.seeds)) for one in self.contestants_on(rows.task)
            ]
            for rows in self.rows(store)
        }


def average_ranks(
    standings: dict[str, list[Standing]], part: Part
) -> tuple[dict[str, float], list[str]]:
    """Rank those that are compared, averaged over the tasks that all have run, which are returned.

    Equal numbers share their ranks; who diverged in any run is last.
    """
    ranked = {
        task: [one for one in rows if one.contestant.is_compared] for task, rows in standings.items()
    }
    begun = begun_names(ranked)
    compared = {
        task: {one.contestant.name: one.place(part) for one in rows if one.contestant.name in begun}
        for task, rows in ranked.items()
        if begun and all(one.is_complete for one in rows if one.contestant.name in begun)
    }
    ranks = {
        name: statistics.fmean(rank(places[name], places) for places in compared.values())
        for name in begun
        if compared
    }
    return dict(sorted(ranks.items(), key=lambda item: item[1])), list(compared)


def begun_names(standings: Mapping[str, Sequence[Standing]]) -> list[str]:
    """Name the contestants that have begun any task, in their order, which equal ranks keep."""
    begun = (one.contestant.name for rows in standings.values() for one in rows if one.is_begun)
    return list(dict.fromkeys(begun))


def rank(place: float, places: dict[str, float]) -> float:
    """Return which place it is among all, itself being one; equal ones share their ranks.

    >>> rank(2.0, {"a": 1.0, "b": 2.0, "c": 2.0})
    2.5
    """
    others = list(places.values())
    return 1 + sum(other < place for other in others) + (others.count(place) - 1) / 2
