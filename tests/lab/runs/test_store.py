"""The store: a run is done once, whoever asks; rows come back as they were; damage is told plainly."""

import csv
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pesky.errors import InputError
from pesky.lab.race.rows import Row, Store
from pesky.lab.runs import store as store_module
from tests.devices import NULL, made_device
from tests.lab.race.toys import rows_of_race, some_key, some_row, toy_race, without_times

ROOT = Path(__file__).parents[3]
PREAMBLE = """
import sys, time
from pesky.lab.race.rows import Store
from tests.lab.race.toys import some_key, some_row
store = Store(sys.argv[1])
"""


def process(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.sqlite"


@pytest.fixture
def store(path):
    with Store(path) as opened:
        yield opened


@pytest.fixture
def other(store, path):
    """A second opening of the same file, as another process has it."""
    with Store(path) as opened:
        yield opened


def from_elsewhere(path, monkeypatch):
    """The store as a process on another machine opens it."""
    with monkeypatch.context() as patch:
        patch.setattr(store_module.socket, "gethostname", lambda: "elsewhere")
        return Store(path)


def test_a_claim_is_held_by_one_until_it_is_released(store, other):
    assert store.claim(some_key())
    assert not other.claim(some_key())
    assert not store.claim(some_key())
    assert other.claim(some_key(seed=1))
    store.release(some_key())
    assert other.claim(some_key())


def test_nobody_releases_the_claim_of_another(store, other):
    assert store.claim(some_key())
    other.release(some_key())
    assert not other.claim(some_key())


def test_what_is_finished_is_known_to_all_and_cannot_be_claimed(store, other):
    assert store.claim(some_key())
    assert other.get(some_key()) is None
    store.finish(some_key(), some_row())
    assert other.get(some_key()) == store.get(some_key()) == some_row()
    assert not other.claim(some_key())
    assert not store.claim(some_key())


def test_the_first_result_stays(store, other):
    store.finish(some_key(), some_row(test=1.0))
    other.finish(some_key(), some_row(test=2.0))
    assert store.rows() == [(some_key(), some_row(test=1.0))]


def test_closing_gives_up_claims(store, path):
    closed = Store(path)
    assert closed.claim(some_key())
    closed.close()
    assert store.claim(some_key())


@pytest.mark.parametrize("name", some_key()._fields)
def test_every_part_of_the_key_tells_runs_apart(store, name):
    value = getattr(some_key(), name)
    changed = some_key(**{name: value + 1 if isinstance(value, int) else value + "x"})
    store.finish(some_key(), some_row())
    assert store.get(changed) is None
    assert store.claim(changed)


@pytest.mark.parametrize(
    "row",
    [
        some_row(),
        some_row(status="cut"),
        some_row(status="diverged", first=None),
        Row("finished", 100 / 3, None, 0.1 + 0.2, None, 0, 0.0),
    ],
)
def test_rows_come_back_as_they_were(store, row):
    store.finish(some_key(), row)
    assert store.get(some_key()) == row


def test_rows_are_found_by_parts_of_their_keys(store):
    for seed in (2, 0, 1):
        for method in ("sgd", "adagrad"):
            store.finish(some_key(seed=seed, method=method), some_row(test=seed))
    assert [key.seed for key, _ in store.rows(method="sgd")] == [0, 1, 2]
    assert [row.test for _, row in store.rows(method="sgd", seed=1)] == [1.0]
    assert store.rows(method="smd") == []


def test_threads_of_one_store_never_take_the_same_run(store):
    taken = []

    def work():
        for seed in range(60):
            if store.claim(some_key(seed=seed)):
                taken.append(seed)
                store.finish(some_key(seed=seed), some_row())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(60))


@pytest.mark.subprocess
def test_processes_never_take_the_same_run(path):
    code = """
print("ready", flush=True)
sys.stdin.readline()
for seed in range(150):
    if store.claim(some_key(seed=seed)):
        print(seed, flush=True)
        store.finish(some_key(seed=seed), some_row(test=seed))
"""
    processes = [process(code, path) for _ in range(2)]
    for one in processes:
        assert one.stdout.readline() == "ready\n"
    for one in processes:
        one.stdin.write("go\n")
        one.stdin.flush()
    taken = [int(line) for one in processes for line in one.communicate()[0].split()]
    assert [one.returncode for one in processes] == [0, 0]
    assert sorted(taken) == list(range(150))
    with Store(path) as store:
        assert [row.test for _, row in store.rows()] == list(range(150))


@pytest.mark.subprocess
def test_processes_may_make_the_same_store_at_once(tmp_path):
    code = """
store.close()
print("ready", flush=True)
start = float(sys.stdin.readline())
for number in range(100):
    while time.time() < start + number * 0.03:
        pass
    Store(f"{sys.argv[1]}-{number}").close()
"""
    processes = [process(code, tmp_path / "runs.sqlite") for _ in range(2)]
    for one in processes:
        assert one.stdout.readline() == "ready\n"
    start = time.time() + 0.1
    for one in processes:
        one.stdin.write(f"{start}\n")
        one.stdin.flush()
    complaints = [one.communicate()[1] for one in processes]
    assert [one.returncode for one in processes] == [0, 0], complaints


@pytest.mark.subprocess
def test_a_live_process_keeps_its_claim_and_a_killed_one_loses_it_at_once(store, path):
    with process("print(store.claim(some_key()), flush=True); time.sleep(600)", path) as holder:
        try:
            assert holder.stdout.readline() == "True\n"
            assert not store.claim(some_key())
        finally:
            holder.kill()
    assert store.claim(some_key())


def test_a_claim_from_another_machine_expires_without_a_sign_of_life(store, path, monkeypatch):
    with from_elsewhere(path, monkeypatch) as remote:
        assert remote.claim(some_key())
        assert not store.claim(some_key())
        monkeypatch.setattr(store_module, "_CLAIM_LIVES", 0.0)
        assert store.claim(some_key())


def test_claims_show_signs_of_life(path, monkeypatch):
    monkeypatch.setattr(store_module, "_SIGN_OF_LIFE", 0.05)
    with Store(path) as store, sqlite3.connect(path) as reader:
        assert store.claim(some_key())

        def alive_at():
            return reader.execute("SELECT alive_at FROM claims").fetchone()[0]

        first, deadline = alive_at(), time.monotonic() + 30
        while alive_at() <= first:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    reader.close()


def test_an_export_is_sorted_and_loads_back_as_equal_rows(tmp_path, path):
    with Store(path) as store, Store(tmp_path / "again.sqlite") as again:
        toy_race(store, methods=("vsgd-l", "adagrad", "almeida")).run()
        assert {row.status for _, row in store.rows()} == {"finished", "cut", "diverged"}
        text = tmp_path / "rows.csv"
        assert store.export(text) == len(store.rows())
        assert again.load(text) == len(store.rows())
        assert again.rows() == store.rows()
        again.export(tmp_path / "again.csv")
        assert (tmp_path / "again.csv").read_bytes() == text.read_bytes()


@pytest.mark.parametrize("exists", [False, True])
def test_a_store_may_be_a_link_and_stays_one(tmp_path, exists):
    (tmp_path / "far").mkdir()
    link = tmp_path / "link.sqlite"
    link.symlink_to("far/runs.sqlite")
    if exists:
        Store(tmp_path / "far" / "runs.sqlite").close()
    with Store(link) as store:
        store.finish(some_key(), some_row())
    assert link.is_symlink()
    with Store(tmp_path / "far" / "runs.sqlite") as store:
        assert len(store.rows()) == 1
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["runs.sqlite"]


def not_a_store(path, kind):
    """Put something at a path that can hold no database."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "nowhere":
        path.symlink_to("nowhere/runs.sqlite")
    else:
        made_device(path, NULL)


@pytest.mark.parametrize("kind", ["FIFO", "loop", "nowhere", "device"])
def test_what_can_hold_no_database_is_refused_and_left_as_it_is(tmp_path, kind):
    path = tmp_path / "runs.sqlite"
    not_a_store(path, kind)
    before = path.lstat()
    with pytest.raises(InputError, match=rf"runs\.sqlite cannot be used: .*{kind}.*; "):
        Store(path)
    after = path.lstat()
    assert (after.st_mode, after.st_rdev, after.st_ino) == (
        before.st_mode,
        before.st_rdev,
        before.st_ino,
    )
    assert list(tmp_path.iterdir()) == [path]  # no journal either


def test_the_order_of_an_export_is_that_of_the_keys(tmp_path, store):
    for seed in (101, 9, 100, 0):
        for settings in ("eta0=3e-2", "eta0=1e-1"):
            store.finish(some_key(seed=seed, settings=settings), some_row())
    store.export(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as stream:
        found = [(line["settings"], int(line["seed"])) for line in csv.DictReader(stream)]
    assert found == [(text, seed) for text in ("eta0=1e-1", "eta0=3e-2") for seed in (0, 9, 100, 101)]


@pytest.mark.parametrize("number", [100 / 3, 0.1 + 0.2, 1e-17, 12345.678901234567, 0.0])
def test_an_export_loses_no_digits(tmp_path, store, number):
    # A rounded first-epoch error would cut other runs than the one that was measured.
    row = Row("finished", number, number, number, None, 123456789, round(number, 3))
    store.finish(some_key(), row)
    store.export(tmp_path / "rows.csv")
    with Store(tmp_path / "again.sqlite") as again:
        again.load(tmp_path / "rows.csv")
        assert again.get(some_key()) == row


def test_loading_twice_changes_nothing(tmp_path, store):
    for seed, status in enumerate(("finished", "cut", "diverged")):
        store.finish(some_key(seed=seed), some_row(status=status))
    store.export(tmp_path / "rows.csv")
    before = store.rows()
    for _ in range(2):
        assert store.load(tmp_path / "rows.csv") == 3
        assert store.rows() == before


def test_loading_keeps_what_is_there(tmp_path, store):
    store.finish(some_key(), some_row(test=1.0))
    store.export(tmp_path / "rows.csv")
    with Store(tmp_path / "again.sqlite") as again:
        again.finish(some_key(), some_row(test=2.0))
        again.finish(some_key(seed=1), some_row(test=3.0))
        again.load(tmp_path / "rows.csv")
        assert [row.test for _, row in again.rows()] == [2.0, 3.0]


def test_a_race_goes_on_from_loaded_rows(tmp_path):
    options = {"methods": ("vsgd-l", "adagrad")}
    undisturbed = rows_of_race(tmp_path / "one.sqlite", **options)
    with Store(tmp_path / "one.sqlite") as store:
        store.export(tmp_path / "rows.csv", method="vsgd-l")
    with Store(tmp_path / "two.sqlite") as store:
        store.load(tmp_path / "rows.csv")
        toy_race(store, **options).run()
        assert without_times(store.rows()) == undisturbed


def exported(tmp_path):
    with Store(tmp_path / "source.sqlite") as store:
        for seed in range(3):
            store.finish(some_key(seed=seed), some_row())
        store.export(tmp_path / "rows.csv")
    return (tmp_path / "rows.csv").read_bytes()


DAMAGES = {
    "empty": lambda text: b"",
    "not a table": lambda text: b"hello\nworld\n",
    "binary": lambda text: bytes(range(256)) * 10,
    "a column is missing": lambda text: text.replace(b",seconds", b"").replace(b",0.012", b""),
    "the header is damaged": lambda text: text.replace(b"benchmark", b"benchmork", 1),
    "cut within the key": lambda text: text[: text.rindex(b"cross-entropy")],
    "cut before the numbers": lambda text: text[: text.rindex(b"finished") + len(b"finished")],
    "cut within a word": lambda text: text[: text.rindex(b"finished") + 3],
    "cut before the last number": lambda text: text[: text.rindex(b",0.012")],
    "a value too many": lambda text: text.replace(b"0.012", b"0.012,0.012", 1),
    "a word for a seed": lambda text: text.replace(b",3,1,1,", b",3,one,1,", 1),
    "no seed": lambda text: text.replace(b",3,1,1,", b",3,,1,", 1),
    "no samples": lambda text: text.replace(b",600,", b",,", 1),
    "a word for an error": lambda text: text.replace(b",10,", b",ten,", 1).replace(
        b",10.0,", b",ten,", 1
    ),
    "not a number": lambda text: text.replace(b"0.012", b"nan", 1),
    "an unknown status": lambda text: text.replace(b"finished", b"vanished", 1),
    "not UTF-8": lambda text: text.replace(b"toy", b"to\xff", 1),
    "a field without end": lambda text: text + b"x" * 200_000,
    "a quote without end": lambda text: text.replace(b"toy", b'"toy', 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_nothing_of_it_is_loaded(tmp_path, store, damage):
    whole = exported(tmp_path)
    text = tmp_path / "damaged.csv"
    text.write_bytes(DAMAGES[damage](whole))
    assert text.read_bytes() != whole
    with pytest.raises(InputError, match=r"damaged\.csv") as raised:
        store.load(text)
    assert len(str(raised.value).splitlines()) == 1
    assert store.rows() == []


def test_a_header_alone_is_an_export_of_nothing(tmp_path, store):
    assert store.export(tmp_path / "rows.csv") == 0
    assert store.load(tmp_path / "rows.csv") == 0


def foreign_database(path, version, *statements):
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version={version}")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("version", [0, 99])
def test_a_store_of_another_format_is_refused_and_left_as_it_is(path, version):
    Store(path).close()
    foreign_database(path, version)
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"format {version}"):
        Store(path)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused(path):
    # Many programs count their formats from 1.
    foreign_database(path, 1, "CREATE TABLE runs (distance REAL, shoes TEXT)")
    with pytest.raises(InputError, match=r"runs\.sqlite"):
        Store(path)


def test_what_is_no_store_is_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database\n" * 100)
    (tmp_path / "folder").mkdir()
    for path in (text, tmp_path / "folder", text / "below"):
        with pytest.raises(InputError, match=r"the store .*name a"):
            Store(path)
    assert text.read_text() == "not a database\n" * 100


def test_the_folder_of_a_store_is_made(tmp_path):
    Store(tmp_path / "new" / "folder" / "runs.sqlite").close()
    assert (tmp_path / "new" / "folder" / "runs.sqlite").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder closed to root too")
def test_a_folder_closed_to_everybody_is_named():
    with pytest.raises(InputError, match=r"the store /proc/pesky/runs\.sqlite"):
        Store("/proc/pesky/runs.sqlite")
