"""A toy table as a process to be killed: python -m tests.lab.torch_table.toy_table STORE LOG JOBS STEPS.

Writes a line to LOG when a run is begun here, and one to standard output when a run is done.
"""

import os
import sys
from dataclasses import replace

from pesky.lab.torch_table import workers as workers_module
from pesky.lab.torch_table.rows import Store
from pesky.lab.torch_table.workers import workers
from tests.lab.toys import TOY, toy_table

NAMES = ("vsgd", "adam", "sgd-tuned", "adam-tuned")


def main(path, log, jobs, steps):
    run = workers_module.run
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def noted(task, key, *others):
        os.write(file, ("|".join(map(str, key)) + "\n").encode())  # at once, so that it is never half
        return run(task, key, *others)

    workers_module.run = noted
    table = toy_table(*NAMES, tasks=(replace(TOY, steps=int(steps)),))
    table.watch = lambda progress: print(progress.done, flush=True)
    with Store(path) as store, workers(int(jobs)) as places:
        table.run(store, places, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
