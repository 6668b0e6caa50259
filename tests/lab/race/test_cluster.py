"""A race on a real Dask cluster: whatever is killed, the rows are those of a race here, each once."""

import contextlib
import json
import math
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.lab.race.cluster import Cluster
from pesky.lab.race.contest import ContestRun
from pesky.lab.race.rows import Store
from tests.commands import COMMAND, assert_one_clear_line, pesky_command
from tests.lab.race.clusters import LocalCluster, wait_until
from tests.lab.race.toys import toy_task, without_times

comm = pytest.importorskip("distributed.comm", reason="the extra cluster is not installed")

SMALL = ("mine.npz", "--layers", "6,5,3", "--methods", "vsgd-b,adagrad,sgd", "--grid", "coarse")
OPTIONS = (*SMALL, "--seeds", "3", "--json")


def write_data(folder):
    task = toy_task(train=4000)
    np.savez(folder / "mine.npz", X=task.train_inputs, y=task.train_targets)


def outcome(result, folder):
    """The table of a race and its rows, times aside."""
    assert result.returncode == 0, result.stderr
    table = json.loads(result.stdout)["benchmarks"]
    for row in table["mine.npz"]:
        assert row.pop("tuning_seconds") >= 0
    with Store(folder / "pesky-race.sqlite") as store:
        assert store._connection.execute("SELECT count(*) FROM claims").fetchone() == (0,)
        return table, without_times(store.rows())


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The same race in threads of one process."""
    folder = tmp_path_factory.mktemp("local")
    write_data(folder)
    return outcome(pesky_command("race", *OPTIONS, cwd=folder), folder)


@pytest.fixture
def cluster(tmp_path):
    write_data(tmp_path)
    (tmp_path / "cluster").mkdir()
    started = LocalCluster(tmp_path / "cluster")
    yield started
    started.close()


@contextlib.contextmanager
def racing(cluster, folder):
    with subprocess.Popen(
        [*COMMAND, "race", *OPTIONS, "--cluster", cluster.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(process):
    output, said = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, output, said)


def wait_for_runs(cluster, count, process):
    def begun():
        assert process.poll() is None, process.communicate()
        return cluster.begun().total() >= count

    wait_until(begun)


def test_a_worker_killed_midway_changes_nothing(cluster, tmp_path, expected):
    for _ in range(2):
        cluster.add_worker()
    with racing(cluster, tmp_path) as process:
        wait_for_runs(cluster, 12, process)
        cluster.workers[0].kill()
        result = finished(process)
    assert result.stderr == ""
    assert outcome(result, tmp_path) == expected
    counts = cluster.begun()
    rows = expected[1]
    assert len(counts) == len(rows)
    # Begun again were only runs that the dead one had under way, or whose rows it still held.
    assert counts.total() < len(rows) + 10
    assert len(rows) > 50


def test_when_all_workers_die_with_the_data_later_ones_go_on(cluster, tmp_path, expected):
    cluster.add_worker()
    with racing(cluster, tmp_path) as process:
        wait_for_runs(cluster, 12, process)
        cluster.workers[0].kill()
        cluster.add_worker()
        result = finished(process)
    assert result.stderr == ""
    assert outcome(result, tmp_path) == expected


def rows_in(folder):
    with Store(folder / "pesky-race.sqlite") as store:
        return without_times(store.rows())


def test_ctrl_c_keeps_what_is_done_and_the_same_race_goes_on_without_the_cluster(
    cluster, tmp_path, expected
):
    cluster.add_worker()
    with racing(cluster, tmp_path) as process:
        wait_for_runs(cluster, 12, process)
        process.send_signal(signal.SIGINT)
        result = finished(process)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "pesky: interrupted\n")
    rows = rows_in(tmp_path)
    assert 0 < len(rows) < len(expected[1])  # how many have arrived depends on the machine
    begun = cluster.begun().total()
    time.sleep(1)
    assert cluster.begun().total() <= begun + 1  # what was under way ends; nothing else begins
    assert outcome(pesky_command("race", *OPTIONS, cwd=tmp_path), tmp_path) == expected


def test_a_scheduler_that_dies_is_one_clear_line_and_loses_nothing(cluster, tmp_path, expected):
    cluster.add_worker()
    with racing(cluster, tmp_path) as process:
        wait_for_runs(cluster, 12, process)
        cluster.scheduler.kill()
        result = finished(process)
    assert_one_clear_line(result, cluster.address, "is gone", "goes on")
    assert 0 < len(rows_in(tmp_path)) < len(expected[1])


def test_a_scheduler_that_dies_while_a_row_is_fetched_is_gone(monkeypatch):
    client = SimpleNamespace(status="running", run=lambda *_, **__: {})

    def broken(*_):
        raise comm.CommClosedError("Connection reset by peer")

    cluster = Cluster(client, "tcp://host:8786")
    monkeypatch.setattr(cluster, "_attempt", broken)
    with pytest.raises(InputError, match=r"tcp://host:8786 is gone.*goes on"):
        cluster.run(ContestRun(None, None, math.inf), threading.Event())


def race_on(address, folder, *options):
    started = time.monotonic()
    result = pesky_command("race", *OPTIONS, "--cluster", address, *options, cwd=folder)
    assert time.monotonic() - started < 40  # seconds, most of them of a busy machine
    assert not (folder / "pesky-race.sqlite").exists()
    return result


def test_a_cluster_without_workers_is_one_clear_line(cluster, tmp_path):
    result = race_on(cluster.address, tmp_path)
    assert_one_clear_line(result, cluster.address, "no workers", "dask worker")


@pytest.mark.parametrize("address", ["nobody", "tcp://127.0.0.1:{port}", "smoke://127.0.0.1:1", ""])
def test_a_cluster_that_is_not_there_is_one_clear_line(address, tmp_path):
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = address.format(port=taken.getsockname()[1])
        assert_one_clear_line(race_on(address, tmp_path), "--cluster", address, "scheduler")


def test_who_answers_but_is_no_scheduler_is_one_clear_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert_one_clear_line(race_on(address, tmp_path), address, "scheduler")


@pytest.mark.parametrize(
    ("preload", "words"),
    [
        ("import pesky.online\npesky.online.NUMERICS_VERSION = -7\n", ["arithmetic -7"]),
        ("import pesky\npesky.__version__ = '0.0.7'\n", ["'0.0.7'"]),
        (
            "import sys\nsys.modules['pesky'] = None\n",
            ["cannot run pesky", "install there"],
        ),
    ],
)
def test_a_worker_with_another_version_or_none_is_refused(cluster, tmp_path, preload, words):
    cluster.add_worker(preload)
    assert_one_clear_line(race_on(cluster.address, tmp_path), "worker tcp://127.0.0.1", *words)


def test_a_worker_with_another_version_that_comes_later_is_refused(cluster, tmp_path):
    cluster.add_worker()
    with racing(cluster, tmp_path) as process:
        wait_for_runs(cluster, 3, process)
        cluster.workers[0].kill()
        cluster.add_worker("import pesky.online\npesky.online.NUMERICS_VERSION = -7\n")
        result = finished(process)
    assert_one_clear_line(result, "a worker has arithmetic -7")


def test_jobs_are_not_for_a_cluster(tmp_path):
    result = race_on("tcp://127.0.0.1:1", tmp_path, "--jobs", "2")
    assert_one_clear_line(result, "--jobs 2", "--cluster")


def test_without_dask_the_line_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['distributed'] = None; from pesky.__main__ import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "race", *OPTIONS, "--cluster", "tcp://127.0.0.1:1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert_one_clear_line(result, "--cluster", "pip install 'pesky[cluster]'")
