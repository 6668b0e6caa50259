"""Devices and FIFOs of our own, and a process's own standard output, for tests that write to them."""

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

NULL, FULL = os.makedev(1, 3), os.makedev(1, 7)  # Linux's numbers of /dev/null and /dev/full


def read_in_thread(path):
    """Read a FIFO to its end beside the test; call what is returned for the content."""
    found = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    reader.start()

    def content():
        reader.join(timeout=30)
        return b"".join(found)

    return content


def made_device(path, number):
    """Make a device of our own, a copy of one in /dev, which no test touches."""
    if sys.platform != "linux":
        pytest.skip("the numbers of devices are Linux's")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.open("wb").close()
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")
    return path


def own_stdout(folder):
    """Return a link as /dev/stdout is one; that itself is not for tests, which may run as root."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc/self/fd")
    link = folder / "stdout"
    link.symlink_to("/proc/self/fd/1")
    return link
