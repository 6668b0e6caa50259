"""What the tests of the race share: a contest whose runs take milliseconds."""

import numpy as np

from pesky.lab.benchmarks import Benchmark, Task
from pesky.lab.race.contest import Contest
from pesky.lab.race.rows import Row, RunKey, Store
from pesky.lab.race.runner import Race
from pesky.lab.race.tuning import FINAL_SEEDS_FROM, TUNING_SEEDS
from pesky.lab.runs.workers import Threads

TOY = Benchmark("toy", "toy", (6, 5, 3))


def toy_task(train=200, test=150, seed=3):
    """Three clouds; chosen so that vSGD-l does well enough in an epoch for rivals to be cut."""
    rng = np.random.default_rng(seed)

    def part(samples):
        labels = rng.integers(3, size=samples)
        inputs = rng.normal(size=(samples, 6))
        inputs[:, 0] += 4 * (labels == 1)
        inputs[:, 1] += 4 * (labels == 2)
        return (inputs - inputs.mean(axis=0)).astype(np.float32), labels

    return Task(*part(train), *part(test))


def toy_contest(task=None, benchmark=TOY, epochs=3, select="test"):
    return Contest.on_own_data(benchmark, task or toy_task(), epochs=epochs, select=select)


def toy_race(store, methods=("vsgd-l", "adagrad", "sgd"), grid="coarse", seeds=2, jobs=1, **contest):
    return Race(toy_contest(**contest), store, tuple(methods), grid, seeds, Threads(jobs))


def rows_of_race(path, **options):
    """Run a whole race in a store of its own; return its rows."""
    with Store(path) as store:
        toy_race(store, **options).run()
        return without_times(store.rows())


def without_times(rows):
    """Rows as they can be compared: seconds are never the same twice."""
    values = [(key, {**vars(row), "seconds": None}) for key, row in rows]
    assert len({key for key, _ in values}) == len(values)
    return values


def some_key(**changed):
    key = RunKey(
        "toy", "0123", "full", "6-5-3", "cross-entropy", "sgd", "eta0=1e-1 gamma=0", 3, 0, 1, "p"
    )
    return key._replace(**changed)


def some_row(test=10.0, status="finished", train=9.0, first=30.0):
    if status != "finished":
        train = test = None
    return Row(status, train, test, first, 7 if status == "diverged" else None, 600, 0.012)


def put_tuning_runs(store, contest, method, settings, *rows):
    """Make up the runs by which a setting is judged."""
    for seed, row in zip(TUNING_SEEDS, rows, strict=True):
        store.finish(contest.key(method, settings, seed), row)


def put_final_runs(store, contest, method, settings, tests, trains=None):
    for number, (test, train) in enumerate(zip(tests, trains or tests, strict=True)):
        row = some_row(status="diverged") if test is None else some_row(test, train=train)
        store.finish(contest.key(method, settings, FINAL_SEEDS_FROM + number), row)
