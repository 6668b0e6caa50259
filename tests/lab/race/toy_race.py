"""A toy race as a process that can be killed: python -m tests.lab.race.toy_race STORE LOG JOBS.

Writes a line to LOG when a run is begun, and one to standard output when a run is done.
"""

import os
import sys

from pesky.lab.race.contest import Contest
from pesky.lab.race.rows import Store
from tests.lab.race.toys import toy_race

METHODS = ("vsgd-l", "vsgd-b", "adagrad", "sgd", "almeida")
OPTIONS = {"methods": METHODS, "grid": "full", "seeds": 3}


def main(path, log, jobs):
    run = Contest.run
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def noted(contest, key, limit, stop):
        os.write(file, ("|".join(map(str, key)) + "\n").encode())  # at once, so that it is never half
        return run(contest, key, limit, stop)

    Contest.run = noted
    with Store(path) as store:
        race = toy_race(store, jobs=int(jobs), **OPTIONS)
        race.watch = lambda progress: print(progress.done, flush=True)
        race.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
