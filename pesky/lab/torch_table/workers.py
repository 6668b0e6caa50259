"""Who does the table's runs: this process, or several, each with one torch thread."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from pesky.errors import InputError
from pesky.lab.torch_table.rows import Row, RunKey
from pesky.lab.torch_table.running import run
from pesky.lab.torch_table.tasks import Task

__all__ = ["Workers", "workers"]

_PAUSE = 0.2  # seconds between looks at whether to stop


class Workers(Protocol):
    """Who does runs."""

    @property
    def places(self) -> int:
        """Return how many runs may be under way at a time."""
        ...

    def run(self, task: Task, key: RunKey, folder: Path | None, stop: threading.Event) -> Row:
        """Have one run done and wait for it; called by a thread a place."""
        ...


@contextmanager
def workers(jobs: int) -> Iterator[Workers]:
    """Yield as many as `jobs`; 0: one a core. Python code holds its lock, so several are processes."""
    places = jobs or os.cpu_count() or 1
    if places == 1:
        with _one_torch_thread():
            yield _Here()
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(places, context, _begin_worker, (stop, os.getpid())) as pool:
        yield _Processes(places, pool, stop)


class _Here:
    """This process."""

    places = 1

    def run(self, task: Task, key: RunKey, folder: Path | None, stop: threading.Event) -> Row:
        """Do it in the thread that asks."""
        return run(task, key, folder, stop)


class _Processes:
    """Processes of this machine."""

    def __init__(self, places: int, pool: ProcessPoolExecutor, stop: Any) -> None:
        self.places = places
        self._pool = pool
        self._stop = stop

    def run(self, task: Task, key: RunKey, folder: Path | None, stop: threading.Event) -> Row:
        """Have it done by whoever is free."""
        try:
            future = self._pool.submit(_run_in_worker, task, key, folder)
            while True:
                if stop.is_set():
                    self._stop.set()
                try:
                    return future.result(timeout=_PAUSE)
                except TimeoutError:
                    continue
        except BrokenProcessPool:
            raise InputError(
                "--jobs: a process died, perhaps for want of memory; "
                "the same command with --jobs 1 goes on from here"
            ) from None


_stopped = threading.Event()  # of a worker


def _begin_worker(stop: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which says stop
    torch.set_num_threads(1)
    threading.Thread(target=_heed, args=(stop, parent), daemon=True).start()


def _heed(stop: Any, parent: int) -> None:
    """Stop when told, and end at once if the parent was killed: nobody would take the row."""
    while not stop.is_set():
        if os.getppid() != parent:
            os._exit(1)
        time.sleep(_PAUSE)
    _stopped.set()


def _run_in_worker(task: Task, key: RunKey, folder: Path | None) -> Row:
    return run(task, key, folder, _stopped)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
