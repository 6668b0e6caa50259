"""Runs that are needed, done by as many as there are places for, and stored as soon as they are over."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Generic

from pesky.lab.runs.layout import Key, Row
from pesky.lab.runs.store import RunStore

__all__ = ["Completion", "Interrupted", "Progress"]

_OTHERS_PAUSE = 0.5  # seconds between looks at what other processes have claimed


class Interrupted(KeyboardInterrupt):
    """A run was stopped before its end, by Ctrl-C or whoever stands for it, and left nothing behind."""


@dataclass
class Progress(Generic[Key, Row]):
    """How far the runs are, for whoever watches."""

    counted: set[Key] = field(default_factory=set)  # runs that are known to be needed
    done: int = 0  # of them
    last: tuple[Key, Row] | None = None

    @property
    def total(self) -> int:
        """Return how many runs are known to be needed."""
        return len(self.counted)


@dataclass
class Completion(Generic[Key, Row]):
    """Does whatever is not in a store yet; `do` is called by a thread a place, and may raise."""

    store: RunStore[Key, Row]
    do: Callable[[Key, threading.Event], Row]
    places: int
    watch: Callable[[Progress[Key, Row]], None]
    progress: Progress[Key, Row] = field(default_factory=Progress)

    def complete(self, keys: Iterable[Key], stop: threading.Event) -> None:
        """Return when every run is in the store, whoever did it."""
        progress = self.progress
        wanted = [key for key in dict.fromkeys(keys) if key not in progress.counted]
        missing = [key for key in wanted if self.store.get(key) is None]
        progress.counted.update(wanted)
        progress.done += len(wanted) - len(missing)
        self.watch(progress)
        with ThreadPoolExecutor(self.places) as pool:
            try:
                while missing and not stop.is_set():
                    missing = self._pass(pool, missing, stop)
                    if missing:
                        stop.wait(_OTHERS_PAUSE)
            except BaseException:
                stop.set()
                raise
        if stop.is_set():
            raise Interrupted

    def _pass(self, pool: ThreadPoolExecutor, missing: list[Key], stop: threading.Event) -> list[Key]:
        """Do what can be claimed; return what others are still at."""
        futures: dict[Future[Row | None], Key] = {
            pool.submit(self._do_once, key, stop): key for key in missing
        }
        left = []
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    row = future.result()
                    if row is None:
                        left.append(futures[future])
                    else:
                        self.progress.done += 1
                        self.progress.last = (futures[future], row)
                        self.watch(self.progress)
        except BaseException:
            stop.set()
            for future in pending:
                future.cancel()
            raise
        return left

    def _do_once(self, key: Key, stop: threading.Event) -> Row | None:
        known = self.store.get(key)
        if known is not None:
            return known
        if stop.is_set():
            raise Interrupted
        if not self.store.claim(key):
            return self.store.get(key)
        try:
            row = self.do(key, stop)
        except BaseException:
            self.store.release(key)
            raise
        self.store.finish(key, row)
        return row
