"""A Dask cluster of real processes on this machine, whose workers can be killed."""

import json
import os
import subprocess
import sys
import time
from collections import Counter

# What a worker notes: one line a run that it begins, at once, so that none is ever half.
NOTING = """
import os
from pesky.lab.race.contest import Contest


def dask_setup(worker):
    run, file = Contest.run, os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def noted(contest, key, limit, stop):
        os.write(file, ("|".join(map(str, key)) + "\\n").encode())
        return run(contest, key, limit, stop)

    Contest.run = noted
"""


class LocalCluster:
    """A scheduler and as many workers as are added; all end with the test."""

    def __init__(self, folder):
        self._folder = folder
        self.log = folder / "begun"
        self.log.touch()
        self._preload = folder / "noting.py"
        self._preload.write_text(NOTING.format(log=str(self.log)))
        self.workers = []
        place = folder / "scheduler.json"
        arguments = ["--port", "0", "--no-dashboard", "--scheduler-file", str(place)]
        self.scheduler = self._start("scheduler", *arguments)
        wait_until(lambda: place.exists() and place.read_text().endswith("}"))
        self.address = json.loads(place.read_text())["address"]

    def _start(self, *arguments):
        # In its own folder: it writes what does not fit into memory there.
        with (self._folder / "dask.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments, "--host", "127.0.0.1"],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "PYTHONWARNINGS": ""},
            )

    def add_worker(self, preload=""):
        """Add a worker of one thread; `preload` is Python that it runs first."""
        script = self._preload
        if preload:
            script = self._folder / f"preload{len(self.workers)}.py"
            script.write_text(preload)
        options = ["--no-nanny", "--no-dashboard", "--nthreads", "1", "--preload", str(script)]
        self.workers.append(self._start("worker", self.address, *options))

    def begun(self):
        """Return how often each run was begun."""
        return Counter(self.log.read_text().splitlines())

    def close(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def wait_until(true, seconds=600):
    """Wait; the limit is for what never comes, not for slow machines."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
