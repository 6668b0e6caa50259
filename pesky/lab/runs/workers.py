"""Who does runs: threads of this process, or processes of this machine.

`pesky.lab.race.cluster` has those of other machines.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from pesky.errors import InputError

__all__ = ["Job", "Processes", "Threads", "Workers", "processes"]

_PAUSE = 0.2  # seconds between looks at whether to stop

Row = TypeVar("Row")
Row_co = TypeVar("Row_co", covariant=True)
Job_contra = TypeVar("Job_contra", contravariant=True)


class Job(Protocol[Row_co]):
    """A run that knows all it needs, so that it can be sent to whoever does it."""

    def run(self, stop: threading.Event) -> Row_co:
        """Do it here, until its end or until `stop` is set."""
        ...


class Workers(Protocol[Job_contra, Row_co]):
    """Who does runs; what is needed is chosen, claimed and stored by others."""

    @property
    def places(self) -> int:
        """Return how many runs may be under way at a time."""
        ...

    def run(self, job: Job_contra, stop: threading.Event) -> Row_co:
        """Have one run done and wait for it; called by a thread a place."""
        ...


class Threads:
    """Threads of this process over one copy of the data: the engine lets go of the interpreter."""

    def __init__(self, jobs: int | None = None) -> None:
        """Take a thread a core, or as many as `jobs`."""
        self.places = jobs or os.cpu_count() or 1

    def run(self, job: Job[Row], stop: threading.Event) -> Row:
        """Do it in the thread that asks."""
        return job.run(stop)


class Processes:
    """Processes of this machine, for runs that hold the interpreter's lock."""

    def __init__(self, places: int, pool: ProcessPoolExecutor, stop: Any) -> None:
        """Take a pool whose processes heed `stop`; `processes` makes both."""
        self.places = places
        self._pool = pool
        self._stop = stop

    def run(self, job: Job[Row], stop: threading.Event) -> Row:
        """Have it done by whoever is free."""
        try:
            future = self._pool.submit(_run_in_worker, job)
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


@contextmanager
def processes(places: int, prepare: Callable[[], None]) -> Iterator[Processes]:
    """Start processes, each of which calls `prepare` first; they end with the block or their parent."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(places, context, _begin_worker, (stop, os.getpid(), prepare)) as pool:
        yield Processes(places, pool, stop)


_stopped = threading.Event()  # of a worker


def _begin_worker(stop: Any, parent: int, prepare: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which says stop
    prepare()
    threading.Thread(target=_heed, args=(stop, parent), daemon=True).start()


def _heed(stop: Any, parent: int) -> None:
    """Stop when told, and end at once if the parent was killed: nobody would take the row."""
    while not stop.is_set():
        if os.getppid() != parent:
            os._exit(1)
        time.sleep(_PAUSE)
    _stopped.set()


def _run_in_worker(job: Job[Row]) -> Row:
    return job.run(_stopped)
