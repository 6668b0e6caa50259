"""A few threads for kernels that let go of the interpreter lock."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

__all__ = ["in_threads"]

_WORTHWHILE = 8  # chunks a thread: below, handing work over costs more than it saves

_pools: dict[int, ThreadPoolExecutor] = {}
# A forked child has none of its parent's threads, only the record of them.
os.register_at_fork(after_in_child=_pools.clear)


def in_threads(work: Callable[[int, int], Any], chunks: int) -> None:
    """Call `work(first, last)` so that together the calls cover all chunks, torch's threads at once."""
    threads = min(torch.get_num_threads(), chunks // _WORTHWHILE)
    if threads < 2:
        work(0, chunks)
        return
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="pesky")
    bounds = [chunks * k // threads for k in range(threads + 1)]
    others = [_pools[threads].submit(work, bounds[k], bounds[k + 1]) for k in range(threads - 1)]
    try:
        work(bounds[-2], bounds[-1])  # this thread does its share too
    finally:
        wait(others)  # whatever happens here, Ctrl-C too: they write to memory that others go on with
    for other in others:
        other.result()
