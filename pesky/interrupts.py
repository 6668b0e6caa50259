"""Ctrl-C as an event, so that nothing is left half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["stopped_by_ctrl_c"]


@contextmanager
def stopped_by_ctrl_c(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; a second one raises KeyboardInterrupt, as usual.

    Where Ctrl-C is not ours to take, in another thread or under someone else's handler, the event is
    left as it is.
    """
    event = stop or threading.Event()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield event
        return

    def note(number: int, frame: Any) -> None:
        if event.is_set():
            signal.default_int_handler(number, frame)
        event.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
