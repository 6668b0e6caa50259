"""The table's rows: a run is done once, whoever asks, survives kill -9, and comes back from CSV."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pesky.errors import InputError
from pesky.lab.race.rows import Store as RaceStore
from pesky.lab.runs.completing import Interrupted
from pesky.lab.torch_table.contestants import CONTESTANTS, METHODS, VARIANTS
from pesky.lab.torch_table.page import torch_page
from pesky.lab.torch_table.rows import Row, Store
from pesky.lab.torch_table.workers import workers
from tests.lab.torch_table.stored import put
from tests.lab.toys import STEPS, TOY, TOYS, some_row, toy_key, toy_table, without_times

ROOT = Path(__file__).parents[3]
GRIDS = ("adam", "sgd-tuned", "adam-tuned")


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.sqlite") as opened:
        yield opened


class Counting:
    """Runs that take no time: each rate's test number is its distance from the best."""

    places = 1

    def __init__(self, best="lr=3e-3"):
        self.keys = []
        self.best = best

    def run(self, job, stop):
        self.keys.append(job.key)
        return some_row(test=1.0 if job.key.settings.startswith(self.best) else 2.0)


def test_no_run_is_done_twice(store):
    first, second, third = Counting(), Counting(), Counting()
    toy_table(*GRIDS, seeds=2).run(store, first, None)
    # On each of two tasks: two grids of seven, Adam's default and two winners at one more seed.
    assert len(set(first.keys)) == len(first.keys) == 2 * (14 + 1 + 2)
    toy_table(*GRIDS, seeds=2).run(store, second, None)
    assert second.keys == []
    toy_table(*GRIDS, seeds=3).run(store, third, None)
    assert Counter(key.seed for key in third.keys) == {2: 2 * 3}


def test_adam_goes_first_and_others_have_ten_times_its_seconds(store):
    class Slow(Counting):
        def __init__(self):
            super().__init__()
            self.limits = {}

        def run(self, job, stop):
            self.limits[job.key] = job.limit
            return replace(super().run(job, stop), seconds=7.0 if job.key.seed else 0.5)

    places = Slow()
    toy_table("vsgd", "dog", "adam", tasks=(TOY,)).run(store, places, None)
    assert [key.method for key in places.keys] == ["adam", "adam", "vsgd", "vsgd", "dog", "dog"]
    for key, limit in places.limits.items():
        # What is short anyway is never too slow.
        assert limit == (math.inf if key.method == "adam" else 70.0 if key.seed else 20.0)


def test_parts_of_an_ablation_may_take_as_long_as_they_like(store):
    put(store, "adam", some_row())
    limits = {}

    class Noting(Counting):
        def run(self, job, stop):
            limits[job.key.settings] = job.limit
            return super().run(job, stop)

    variants = (CONTESTANTS["vsgd"], VARIANTS["every-1"], VARIANTS["no-undo"])
    replace(toy_table(tasks=(TOY,), seeds=1), contestants=variants).run(store, Noting(), None)
    assert limits == {
        "dialect=robust": 20.0,
        "dialect=robust curvature_every=1": math.inf,
        "dialect=robust without=undo": math.inf,
    }


def test_without_adams_run_nothing_is_too_slow(store):
    limits = []

    class Watched(Counting):
        def run(self, job, stop):
            limits.append(job.limit)
            return super().run(job, stop)

    toy_table("vsgd", tasks=(TOY,)).run(store, Watched(), None)
    assert limits == [math.inf] * 2


def test_who_is_too_slow_is_told_and_last(store):
    slow = Row("too slow", None, None, None, 7, 20.5, "start 1 10;1 0.1 1.1 1")
    store.finish(toy_key("vsgd", "dialect=robust"), slow)
    store.finish(toy_key("vsgd", "dialect=robust", seed=1), some_row())
    (standing,) = toy_table("vsgd", tasks=(TOY,)).standings(store)["toy"]
    assert (len(standing.too_slow), standing.place("train")) == (1, math.inf)
    assert standing.numbers()["too_slow"] == 1
    page = torch_page(toy_table("vsgd", tasks=(TOY,)), store, "pesky torch-table")
    assert "| 0.5, 1 of 2 too slow |" in page
    assert "- VSGD robust: too slow in 1 of 2 runs: toy" in page


def test_a_task_without_its_package_is_told_before_any_run(store):
    table = toy_table("adam", tasks=(TOY, replace(TOY, name="needy", package="no_such_package")))
    places = Counting()
    with pytest.raises(InputError, match=r"needy needs no_such_package.*--tasks"):
        table.run(store, places, None)
    assert places.keys == []


def test_who_is_not_ranked_is_left_out_of_later_tasks(store):
    table = toy_table(*GRIDS, tasks=(replace(TOY, is_first=False),))
    table.run(store, Counting(), None)
    assert {key.method for key, _ in store.rows()} == {"adam"}
    assert [one.contestant.name for one in table.standings(store)["toy"]] == ["adam"]


def test_winners_have_the_lowest_test_number_at_seed_0(store):
    table = toy_table(*GRIDS)
    table.run(store, Counting(), None)
    for standings in table.standings(store).values():
        settings = [one.setting for one in standings]
        assert settings == ["lr=1e-3", "lr=3e-3 momentum=0.9", "lr=3e-3"]
        assert [len(one.tuning) for one in standings] == [0, 7, 7]
        assert all(one.is_complete and len(one.runs) == 2 for one in standings)


def test_a_grid_without_a_winner_needs_no_more_runs(store):
    class Diverging(Counting):
        def run(self, job, stop):
            self.keys.append(job.key)
            return some_row(diverged_at=3)

    table, places = toy_table("sgd-tuned", tasks=(TOY,)), Diverging()
    table.run(store, places, None)
    assert len(places.keys) == 7
    (standing,) = table.standings(store)["toy"]
    assert (standing.setting, standing.is_complete, len(standing.diverged)) == (None, True, 7)


def test_quick_rows_are_never_mixed_with_full_ones(store):
    quick, full = toy_table("adam", quick=True), toy_table("adam")
    quick.run(store, Counting(), None)
    assert {key.steps for key, _ in store.rows()} == {STEPS // 10}
    assert not any(one.is_begun for rows in full.standings(store).values() for one in rows)
    assert all(one.is_complete for rows in quick.standings(store).values() for one in rows)


def test_rows_of_other_revisions_versions_and_data_do_not_count(store, monkeypatch):
    table = toy_table("adam", seeds=1, tasks=(TOY,))
    for changed in ({"revision": 9}, {"table_version": 99}, {"task": "unknown"}):
        store.finish(toy_key(**changed), some_row())
    store.finish(toy_key("no-such-method"), some_row())
    (standing,) = table.standings(store)["toy"]
    assert not standing.is_begun
    store.finish(toy_key(data="elsewhere"), some_row())
    places = Counting()
    table.run(store, places, None)
    assert places.keys == [toy_key()]
    monkeypatch.setitem(METHODS, "adam", replace(METHODS["adam"], revision=2))
    table.run(store, places, None)
    assert places.keys[1:] == [toy_key(revision=2)]


def test_rows_on_other_data_are_shown_where_there_are_none_here(store):
    for seed in range(2):
        store.finish(toy_key(data="elsewhere", seed=seed), some_row())
    table = toy_table("adam", tasks=(TOY,))
    (standing,) = table.standings(store)["toy"]
    assert len(standing.runs) == 2
    assert table.rows(store)[0].data == "elsewhere"


def test_load_undoes_export(store, tmp_path):
    store.finish(toy_key(), some_row(train=1 / 3))
    store.finish(toy_key(seed=1), some_row(diverged_at=7))
    store.finish(toy_key("sgd", "lr=1 momentum=0.9"), replace(some_row(diverged_at=1), curve=""))
    written, again = tmp_path / "rows.csv", tmp_path / "again.csv"
    assert store.export(written) == 3
    with Store(tmp_path / "other.sqlite") as other:
        assert other.load(written) == 3
        assert other.rows() == store.rows()
        assert other.load(written) == 3  # no harm
        other.export(again)
    assert again.read_bytes() == written.read_bytes()
    lines = written.read_text().splitlines()[1:]
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda text: text.replace("finished", "done"), "unknown status 'done'"),
        (lambda text: text.replace(",0.5,", ",nan,"), "nan"),
        (lambda text: text.replace("toy,toy", "toy,"), "data is missing"),
        (lambda text: text.replace("task,", "job,"), "its columns are job, .*; those wanted are task"),
    ],
)
def test_damaged_rows_are_told(store, tmp_path, damage, word):
    store.finish(toy_key(), some_row())
    path = tmp_path / "rows.csv"
    store.export(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError, match=word):
        store.load(path)


def test_a_races_store_is_not_taken(tmp_path):
    RaceStore(tmp_path / "race.sqlite").close()
    with pytest.raises(InputError, match="name another"):
        Store(tmp_path / "race.sqlite")


@pytest.mark.subprocess
def test_several_processes_give_the_rows_of_one(store, tmp_path):
    table = toy_table("vsgd", "adam", "dog")
    with workers(2) as places:
        table.run(store, places, None)
    with Store(tmp_path / "one.sqlite") as other, workers(1) as places:
        table.run(other, places, None)
        assert without_times(store.rows()) == without_times(other.rows())
    assert len(store.rows()) == 2 * 3 * len(TOYS)


@pytest.mark.subprocess
def test_processes_stop_when_told(store):
    table = toy_table("vsgd", tasks=(replace(TOY, steps=10_000_000),))
    stop = threading.Event()
    timer = threading.Timer(8.0, stop.set)
    timer.start()
    try:
        with workers(2) as places, pytest.raises(Interrupted):
            table.run(store, places, None, stop)
    finally:
        timer.cancel()
    assert store.rows() == []
    assert store._connection.execute("SELECT count(*) FROM claims").fetchone() == (0,)


@contextmanager
def started(*arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lab.torch_table.toy_table", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def rows_in(path):
    with Store(path) as store:
        return without_times(store.rows())


@pytest.mark.subprocess
def test_a_table_killed_goes_on_and_ends_as_if_it_never_was(tmp_path):
    runs, log, jobs = tmp_path / "runs.sqlite", tmp_path / "log", 1
    wanted, kills = 3, 2
    for _ in range(kills):
        with started(runs, log, jobs, STEPS) as process:
            while (line := process.stdout.readline()) and int(line) < wanted:
                pass
            process.kill()
        assert process.returncode == -signal.SIGKILL
        wanted = len(rows_in(runs)) + 3
    with started(runs, log, jobs, STEPS) as process:
        process.communicate(timeout=300)
    assert process.returncode == 0
    undisturbed = tmp_path / "undisturbed.sqlite"
    with started(undisturbed, tmp_path / "other-log", jobs, STEPS) as process:
        process.communicate(timeout=300)
    assert rows_in(runs) == rows_in(undisturbed)
    begun = Counter(log.read_text().splitlines())
    assert len(begun) == len(rows_in(runs))
    assert begun.total() <= len(begun) + kills * jobs


def children(pid):
    found = (path.read_text().split() for path in Path("/proc").glob(f"{pid}/task/*/children"))
    return [int(child) for of_one in found for child in of_one]


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@pytest.mark.subprocess
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_processes_end_when_their_parent_is_killed(tmp_path):
    with started(tmp_path / "runs.sqlite", tmp_path / "log", 2, 10_000_000) as process:
        deadline = time.monotonic() + 120
        while len(children(process.pid)) < 3:  # two and the one that looks after their semaphores
            assert time.monotonic() < deadline
            time.sleep(0.1)
        left = children(process.pid)
        process.kill()
    while any(map(is_running, left)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert os.getpid() not in left
