"""The same work on many things, in threads of this process: the engine lets go of the interpreter."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pesky.interrupts import stopped_by_ctrl_c

__all__ = ["in_threads"]

Thing = TypeVar("Thing")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Thing, threading.Event], Result], things: Iterable[Thing], jobs: int | None = None
) -> list[Result]:
    """Return `work(thing, stop)` for every thing, in their order; `jobs` at a time, or one a core.

    Ctrl-C, or an error in one of them, sets `stop`, which ends what is under way; no other begins.
    """
    with stopped_by_ctrl_c() as stop, ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        futures = [pool.submit(_unless, stop, work, thing) for thing in things]
        try:
            results = [future.result() for future in futures]
        except BaseException:
            stop.set()
            raise
    if stop.is_set():
        raise KeyboardInterrupt
    return results


def _unless(
    stop: threading.Event, work: Callable[[Thing, threading.Event], Result], thing: Thing
) -> Result:
    if stop.is_set():
        raise KeyboardInterrupt
    return work(thing, stop)
