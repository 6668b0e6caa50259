"""Who does the table's runs: this process, or several, each with one torch thread."""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from pesky.lab.runs.workers import Threads, Workers, processes
from pesky.lab.torch_table.rows import Row, RunKey
from pesky.lab.torch_table.running import run
from pesky.lab.torch_table.task import Task

__all__ = ["TaskRun", "workers"]


@dataclass(frozen=True)
class TaskRun:
    """One run of the table, as it is sent to whoever does it."""

    task: Task
    key: RunKey
    folder: Path | None  # with data
    limit: float = math.inf  # seconds

    def run(self, stop: threading.Event) -> Row:
        """Do it here."""
        return run(self.task, self.key, self.folder, stop, self.limit)


@contextmanager
def workers(jobs: int) -> Iterator[Workers[TaskRun, Row]]:
    """Yield as many as `jobs`; 0: one a core. Python code holds its lock, so several are processes."""
    places = jobs or os.cpu_count() or 1
    if places == 1:
        with _one_torch_thread():
            yield Threads(1)
        return
    with processes(places, _take_one_thread) as started:
        yield started


def _take_one_thread() -> None:
    torch.set_num_threads(1)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    _take_one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(before)
