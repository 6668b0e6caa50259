"""Races that are killed, or share a store: the same rows as an undisturbed one, and no run too many."""

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pesky.lab.race.rows import Store
from pesky.lab.race.standings import standings
from tests.lab.race.toy_race import OPTIONS
from tests.lab.race.toys import rows_of_race, toy_race, without_times

ROOT = Path(__file__).parents[3]


def start(store, log, jobs=2):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lab.race.toy_race", str(store), str(log), str(jobs)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def finish(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return output


def rows_in(path):
    with Store(path) as store:
        return without_times(store.rows())


def table_in(path):
    """The leaderboard, times aside."""
    with Store(path) as store:
        race = toy_race(store, **OPTIONS)
        return [{**row.numbers(), "tuning_seconds": None} for row in standings(race)]


def begun(log):
    return Counter(log.read_text().splitlines())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "runs.sqlite"
    return rows_of_race(path, **OPTIONS), table_in(path)


def test_a_race_killed_at_random_points_ends_as_if_it_never_was(tmp_path, undisturbed, fresh_seed):
    rows, table = undisturbed
    random_numbers = random.Random(fresh_seed)
    store, log, jobs, kills = tmp_path / "runs.sqlite", tmp_path / "log", 2, 0
    known = 0
    for _ in range(5):
        with start(store, log, jobs) as process:
            # Of what is left, a part; the first of its lines only count what is there already.
            wanted = known + random_numbers.randint(1, max(1, (len(rows) - known) // 3))
            while (line := process.stdout.readline()) and int(line) < wanted:
                pass
            time.sleep(random_numbers.random() * 0.02)
            process.kill()
        kills += process.returncode == -9
        before, known = known, len(rows_in(store))
        assert known >= before
        assert set(map(str, rows_in(store))) <= set(map(str, rows))
    assert kills == 5
    assert 5 < known < len(rows)
    finish(start(store, log, jobs))
    assert rows_in(store) == rows
    assert table_in(store) == table
    # Only runs that were under way when the axe fell were begun again.
    counts = begun(log)
    assert len(counts) == len(rows)
    assert counts.total() <= len(rows) + kills * jobs


def test_a_race_killed_before_and_while_its_store_is_made_goes_on(tmp_path, fresh_seed):
    random_numbers = random.Random(fresh_seed)
    store, log = tmp_path / "runs.sqlite", tmp_path / "log"
    for _ in range(3):
        with start(store, log) as process:
            deadline = time.monotonic() + 60
            while not store.exists():
                assert time.monotonic() < deadline
            time.sleep(random_numbers.random() * 0.005)
            process.kill()
    Store(store).close()


def test_races_that_share_a_store_share_the_work(tmp_path, undisturbed):
    store, log = tmp_path / "runs.sqlite", tmp_path / "log"
    processes = [start(store, log, jobs=1) for _ in range(2)]
    outputs = [finish(process) for process in processes]
    rows, table = undisturbed
    assert rows_in(store) == rows
    assert table_in(store) == table
    counts = begun(log)
    assert (len(counts), counts.total()) == (len(rows), len(rows))  # all of them, none twice
    assert all(outputs)


def test_a_race_takes_over_from_one_that_is_killed_beside_it(tmp_path, undisturbed):
    rows, _ = undisturbed
    store, log = tmp_path / "runs.sqlite", tmp_path / "log"
    survivor, victim = start(store, log, jobs=1), start(store, log, jobs=2)
    with victim:
        while (line := victim.stdout.readline()) and int(line) < 10:
            pass
        victim.kill()
    finish(survivor)
    assert rows_in(store) == rows
    assert begun(log).total() <= len(rows) + 2
