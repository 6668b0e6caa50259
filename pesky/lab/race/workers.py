"""Who does the runs of a race."""

import os
import threading
from typing import Protocol

from pesky.lab.race.contest import Contest
from pesky.lab.race.store import Row, RunKey

__all__ = ["Threads", "Workers"]


class Workers(Protocol):
    """Who does the runs of a race; the race itself chooses, claims and stores them."""

    @property
    def places(self) -> int:
        """Return how many runs may be under way at a time."""
        ...

    def run(self, contest: Contest, key: RunKey, limit: float, stop: threading.Event) -> Row:
        """Have one run done and wait for it, as `Contest.run`; called by a thread a place."""
        ...


class Threads:
    """Threads of this process over one copy of the data: the engine lets go of the interpreter."""

    def __init__(self, jobs: int | None = None) -> None:
        """Take a thread a core, or as many as `jobs`."""
        self.places = jobs or os.cpu_count() or 1

    def run(self, contest: Contest, key: RunKey, limit: float, stop: threading.Event) -> Row:
        """Do one run in the thread that asks."""
        return contest.run(key, limit, stop)
