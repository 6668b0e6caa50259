"""One run: a contestant trains a task's model, and what it ends with is measured."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pesky.lab.runs.completing import Interrupted
from pesky.lab.torch_table.contestants import Diverged, begin, warm_up
from pesky.lab.torch_table.instance import Batch, Instance
from pesky.lab.torch_table.rows import Point, Row, RunKey, curve_text
from pesky.lab.torch_table.tasks import Task

__all__ = ["run"]

_POINTS = 40  # of a curve, about


def run(task: Task, key: RunKey, folder: Path | None, stop: threading.Event) -> Row:
    """Do one run; `folder` is where data is looked for. Random numbers elsewhere are left alone."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(key.seed)
        return _run(task.begin(key.seed, folder), key, stop)


def _run(instance: Instance, key: RunKey, stop: threading.Event) -> Row:
    instance.model.train()
    warm_up()
    training = begin(key.method, key.settings, instance.model)
    curve = _Curve(key.steps)
    broken_since: int | None = None  # the first of the losses just seen that are not finite
    step = 0
    for step in range(1, key.steps + 1):
        if stop.is_set():
            raise Interrupted
        try:
            loss = training.step(_closure(instance, instance.batch(step - 1)))
        except Diverged:
            return _diverged(curve, broken_since or step, step)
        curve.add(step, loss)
        if math.isfinite(loss):
            broken_since = None
        else:
            broken_since = broken_since or step
            if not _is_finite(instance.model):  # an optimizer may have mended it
                return _diverged(curve, broken_since, step)
    seconds = curve.seconds()
    model = training.finish(_closure(instance, instance.batch(step)) for step in range(key.steps))
    train, test = instance.evaluate(model)
    if broken_since is not None or not (math.isfinite(train) and math.isfinite(test)):
        return _diverged(curve, broken_since or key.steps, key.steps)
    return Row("finished", train, test, None, key.steps, round(seconds, 3), curve.text())


def _closure(instance: Instance, batch: Batch) -> Callable[[], Tensor]:
    return lambda: instance.loss(instance.model, batch)


def _is_finite(model: nn.Module) -> bool:
    return all(bool(one.isfinite().all()) for one in model.parameters())


def _diverged(curve: "_Curve", at: int, steps: int) -> Row:
    return Row("diverged", None, None, at, steps, round(curve.seconds(), 3), curve.text())


class _Curve:
    """Mean losses between steps that lie evenly on a logarithmic scale; losses must be finite."""

    def __init__(self, steps: int) -> None:
        self._marks = {round(steps ** (number / (_POINTS - 1))) for number in range(_POINTS)}
        self._points: list[Point] = []
        self._sum = 0.0
        self._count = 0
        self._started = time.process_time()

    def seconds(self) -> float:
        """Return for how long this process has been training."""
        return time.process_time() - self._started

    def add(self, step: int, loss: float) -> None:
        """Take a batch's loss into the mean, and note it where a point is due."""
        if math.isfinite(loss):
            self._sum += loss
            self._count += 1
        if step in self._marks and self._count:
            self._points.append(Point(step, self.seconds(), self._sum / self._count))
            self._sum, self._count = 0.0, 0

    def text(self) -> str:
        """Return it as rows have it."""
        return curve_text(self._points)
