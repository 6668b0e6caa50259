"""Work in threads: results in order, and an end that leaves nothing running."""

import os
import signal
import threading

import pytest

from pesky.lab.runs.threads import in_threads


def test_results_come_in_the_order_of_the_things_and_so_many_at_a_time():
    meet = threading.Barrier(3, timeout=60)

    def work(number, stop):
        meet.wait()  # passed only if three are under way at once
        return -number

    assert in_threads(work, range(9), jobs=3) == [-number for number in range(9)]


def test_an_error_stops_what_is_under_way_and_what_has_not_begun_never_does():
    begun, under_way = [], threading.Event()

    def work(number, stop):
        begun.append(number)
        if number == 0:
            assert under_way.wait(60)
            raise MemoryError("no room")
        under_way.set()
        assert stop.wait(60)

    with pytest.raises(MemoryError):
        in_threads(work, range(50), jobs=2)
    assert len(begun) < 5


def test_ctrl_c_stops_what_is_under_way_and_what_has_not_begun_never_does():
    begun = []

    def work(number, stop):
        begun.append(number)
        os.kill(os.getpid(), signal.SIGINT)  # to the process, as a terminal does
        assert stop.wait(60)

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, range(50), jobs=1)
    assert begun == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
