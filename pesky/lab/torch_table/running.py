"""One run: a contestant trains a task's model, and what it ends with is measured."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from pesky.lab.runs.completing import Interrupted
from pesky.lab.torch_table.contestants import Diverged, begin, warm_up
from pesky.lab.torch_table.instance import Instance
from pesky.lab.torch_table.rows import Mark, Pair, Point, Row, RunKey, curve_text
from pesky.lab.torch_table.task import Task

__all__ = ["run"]

_POINTS = 40  # of a curve, about


def run(
    task: Task, key: RunKey, folder: Path | None, stop: threading.Event, limit: float = math.inf
) -> Row:
    """Do one run; `folder` is where data is looked for, `limit` is in seconds of training.

    Random numbers elsewhere are left alone.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(key.seed)
        instance = task.begin(key.seed, folder)
        return _Run(instance, key, limit, task.is_changing).row(stop)


class _Run:
    """A run under way."""

    def __init__(self, instance: Instance, key: RunKey, limit: float, is_changing: bool) -> None:
        instance.model.train()
        warm_up()
        self._instance = instance
        self._key = key
        self._limit = limit
        self._is_changing = is_changing
        self._marks: dict[Mark, Pair] = {"start": Pair(*instance.evaluate(instance.model))}
        self._training = begin(key.method, key.settings, instance.model)
        self._curve = _Curve(key.steps)
        self._broken_since: int | None = None  # the first of the losses just seen that are not finite

    def row(self, stop: threading.Event) -> Row:
        """Take all steps, unless that is impossible or takes too long."""
        for step in range(1, self._key.steps + 1):
            if stop.is_set():
                raise Interrupted
            if self._curve.seconds() > self._limit:
                return self._row("too slow", step - 1)
            if not self._step(step):
                return self._row("diverged", step, self._broken_since or step)
            self._note_equal_cost(step)
        return self._end()

    def _step(self, step: int) -> bool:
        """Take a step; return whether one can go on."""
        try:
            loss = self._training.step(self._closure(step - 1))
        except Diverged:
            return False
        self._curve.add(step, loss, self._training.cost)
        if math.isfinite(loss):
            self._broken_since = None
            return True
        self._broken_since = self._broken_since or step
        return _is_finite(self._instance.model)  # an optimizer may have mended it

    def _closure(self, step: int) -> Callable[[], Tensor]:
        batch = self._instance.batch(step)
        return lambda: self._instance.loss(self._instance.model, batch)

    def _note_equal_cost(self, step: int) -> None:
        """Measure once, when as many passes are done as an ordinary optimizer's whole run takes.

        Not where the task changes: it would be another one than that of the end.
        """
        is_due = self._training.cost >= self._key.steps > step
        if is_due and not self._is_changing and "equal-cost" not in self._marks:
            with self._curve.clock_stopped():
                found = Pair(*self._instance.evaluate(self._training.finish(())))
            if all(map(math.isfinite, found)):
                self._marks["equal-cost"] = found

    def _end(self) -> Row:
        seconds, steps = self._curve.seconds(), self._key.steps
        model = self._training.finish(self._closure(step) for step in range(steps))
        found = Pair(*self._instance.evaluate(model))
        if self._is_changing:
            found = found._replace(train=self._curve.mean())
        if self._broken_since is not None or not all(map(math.isfinite, found)):
            return self._row("diverged", steps, self._broken_since or steps)
        text = self._curve.text(self._marks)
        return Row("finished", found.train, found.test, None, steps, round(seconds, 3), text)

    def _row(self, status: Literal["diverged", "too slow"], steps: int, at: int | None = None) -> Row:
        seconds = round(self._curve.seconds(), 3)
        return Row(status, None, None, at, steps, seconds, self._curve.text(self._marks))


def _is_finite(model: nn.Module) -> bool:
    return all(bool(one.isfinite().all()) for one in model.parameters())


class _Curve:
    """Mean losses between steps that lie evenly on a logarithmic scale; losses must be finite."""

    def __init__(self, steps: int) -> None:
        self._marks = {round(steps ** (number / (_POINTS - 1))) for number in range(_POINTS)}
        self._points: list[Point] = []
        self._sum = 0.0
        self._count = 0
        self._sum_before = 0.0
        self._count_before = 0
        self._started = time.process_time()

    def seconds(self) -> float:
        """Return for how long this process has been training."""
        return time.process_time() - self._started

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Do something that is no training."""
        before = time.process_time()
        try:
            yield
        finally:
            self._started += time.process_time() - before

    def add(self, step: int, loss: float, cost: float) -> None:
        """Take a batch's loss into the mean, and note it where a point is due."""
        if math.isfinite(loss):
            self._sum += loss
            self._count += 1
        if step in self._marks and self._count:
            self._points.append(Point(step, self.seconds(), self._sum / self._count, cost))
            self._sum_before += self._sum
            self._count_before += self._count
            self._sum, self._count = 0.0, 0

    def mean(self) -> float:
        """Return the mean over all batches so far."""
        return (self._sum_before + self._sum) / (self._count_before + self._count)

    def text(self, marks: Mapping[Mark, Pair]) -> str:
        """Return it as rows have it."""
        return curve_text(self._points, marks)
