"""``pesky race`` as a user meets it: one JSON object, one clear line, and a store to go on from."""

import contextlib
import json
import os
import pty
import signal
import sqlite3
import subprocess
import threading
import time

import pytest

from pesky.cli import run
from pesky.lab import paper
from pesky.lab.race.rows import Store
from tests.commands import COMMAND, assert_one_clear_line, complaints, pesky_command
from tests.devices import FULL, made_device, own_stdout, read_in_thread
from tests.lab.race.toys import some_key, some_row
from tests.real_data import needs_data

SMALL = ("digits", "--methods", "vsgd-b,adagrad", "--grid", "coarse", "--seeds", "2", "--epochs", "1")


def race(*arguments, cwd, **environment):
    return pesky_command("race", *map(str, arguments), cwd=cwd, **environment)


def cells(result):
    """The JSON of a race, times aside."""
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout)
    for rows in numbers["benchmarks"].values():
        for row in rows:
            assert row.pop("tuning_seconds") >= 0
    return numbers


@pytest.fixture(scope="module")
def small_race(tmp_path_factory):
    """What the small race gives if nothing disturbs it."""
    return cells(race(*SMALL, "--json", cwd=tmp_path_factory.mktemp("small")))["benchmarks"]


@pytest.fixture
def complaint(capsys, tmp_path, monkeypatch):
    """What a command that cannot work says, in this process for the sake of time."""
    monkeypatch.chdir(tmp_path)

    def complaint_of(*arguments):
        code = run(["race", *map(str, arguments)])
        printed = capsys.readouterr()
        result = subprocess.CompletedProcess(arguments, code, printed.out, printed.err)
        assert_one_clear_line(result)
        return printed.err

    return complaint_of


def test_the_result_is_one_json_object_with_the_cells(tmp_path):
    arguments = ["digits", "--methods", "vsgd-b,sgd", "--grid", "coarse", "--seeds", "2"]
    result = race(*arguments, "--epochs", "1", "--json", "--out", "made", cwd=tmp_path)
    assert complaints(result.stderr) == []
    numbers = cells(result)
    assert [numbers[name] for name in ("grid", "select", "epochs")] == ["coarse", "test", 1]
    rows = {row["method"]: row for row in numbers["benchmarks"]["digits"]}
    assert set(rows) == {"vsgd-b", "sgd"}
    assert [rows[method]["settings_tried"] for method in ("vsgd-b", "sgd")] == [1, 18]
    assert [rows[method]["tuning_samples"] for method in ("vsgd-b", "sgd")] == [2 * 1438, 36 * 1438]
    assert rows["vsgd-b"]["settings"] == {}
    assert set(rows["sgd"]["settings"]) == {"eta0", "gamma"}
    for row in rows.values():
        for part in ("train", "test"):
            assert 0 < row[part]["mean"] < 30
            assert (row[part]["runs"], row[part]["paper"], row[part]["agrees"]) == (2, None, None)
        assert row["failed_runs"] == 0
    means = [row["test"]["mean"] for row in numbers["benchmarks"]["digits"]]
    assert means == sorted(means)
    written = json.loads((tmp_path / "made" / "race.json").read_text())
    assert set(written["benchmarks"]) == {"digits"}
    with Store(tmp_path / "pesky-race.sqlite") as store:
        assert len(store.rows(method="sgd")) == 36 + 2


def test_without_json_there_is_a_table_and_the_paths(tmp_path):
    result = race(*SMALL, "--export", "rows.csv", cwd=tmp_path)
    assert (result.returncode, complaints(result.stderr)) == (0, [])
    for word in ("digits", "vsgd-b", "adagrad", "nothing to set", "eta0", "±"):
        assert word in result.stdout
    assert result.stdout.splitlines()[-1] == "wrote pesky-race.sqlite, rows.csv"


def test_a_race_again_and_one_from_exported_rows_say_the_same(tmp_path, small_race):
    first = cells(race(*SMALL, "--json", "--export", "rows.csv", cwd=tmp_path))
    assert first["benchmarks"] == small_race
    again = cells(race(*SMALL, "--json", "--export", "again.csv", cwd=tmp_path))
    assert again == first
    # Byte for byte, times and all: nothing was run again.
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "rows.csv").read_bytes()
    arguments = ["--load", "rows.csv", "--store", "other.sqlite", "--export", "other.csv"]
    other = cells(race(*SMALL, "--json", *arguments, cwd=tmp_path))
    assert other["benchmarks"] == first["benchmarks"]
    assert (tmp_path / "other.csv").read_bytes() == (tmp_path / "rows.csv").read_bytes()


def test_settings_may_be_chosen_on_held_out_samples(tmp_path):
    numbers = cells(race(*SMALL, "--json", "--select", "validation", cwd=tmp_path))
    assert numbers["select"] == "validation"
    rows = {row["method"]: row for row in numbers["benchmarks"]["digits"]}
    assert rows["vsgd-b"]["tuning_samples"] == 2 * (1438 - 143)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["M9"], ["M9", "digits"]),
        (["digits", "M9"], ["M9", "digits"]),
        ([], ["BENCHMARK"]),
        (["digits", "--methods", "adam"], ["adam", "vsgd-l"]),
        (["digits", "--methods", "sgd,"], ["method", "vsgd-l"]),
        (["digits", "--grid", "tiny"], ["--grid", "tiny", "coarse"]),
        (["digits", "--grid", "paper", "--methods", "sgd"], ["sgd", "digits", "--grid"]),
        (["digits", "--select", "luck"], ["--select", "luck", "validation"]),
        (["digits", "--seeds", "0"], ["--seeds", "0"]),
        (["digits", "--seeds", "many"], ["--seeds", "integer"]),
        (["digits", "--epochs", "-1"], ["--epochs", "-1"]),
        (["digits", "--jobs", "-1"], ["--jobs", "-1"]),
        (["digits", "--nonsense"], ["--nonsense"]),
        (["digits", "--out", ""], ["--out"]),
        (["digits", "--load", "nowhere.csv"], ["nowhere.csv"]),
        (["M0", "--data", "nowhere"], ["nowhere"]),
    ],
)
def test_what_a_user_gets_wrong_is_one_clear_line(complaint, arguments, words):
    said = complaint(*arguments)
    for word in words:
        assert word in said


def test_rows_that_are_a_folder_are_one_clear_line(tmp_path):
    assert_one_clear_line(race(*SMALL, "--load", ".", cwd=tmp_path), "directory")


def test_an_unknown_benchmark_is_one_clear_line_of_a_real_process(tmp_path):
    assert_one_clear_line(race("M9", cwd=tmp_path), "M9", "digits")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits", "M0", "--data", "nowhere"], ["nowhere"]),
        (["digits", "--export", "no/where.csv"], ["no"]),
        (["digits", "--grid", "paper"], ["--grid"]),
    ],
)
def test_what_cannot_end_well_is_told_before_any_run(tmp_path, arguments, words):
    result = race(*arguments, *SMALL[1:3], "--epochs", "1", "--seeds", "1", cwd=tmp_path)
    assert_one_clear_line(result, *words)
    if (tmp_path / "pesky-race.sqlite").exists():
        with Store(tmp_path / "pesky-race.sqlite") as store:
            assert store.rows() == []


@pytest.mark.parametrize("option", ["--export", "--store"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "folder"),
        (lambda path: path.symlink_to(path.name), "loop"),
        (lambda path: path.symlink_to("nowhere/file"), "nowhere does not exist"),
    ],
)
def test_a_place_for_no_file_is_told_before_any_run(complaint, tmp_path, option, make, words):
    place = tmp_path / "place"
    make(place)
    said = complaint(*SMALL, option, place)
    assert str(place) in said
    assert words in said
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_in_the_way_of_the_numbers_is_told_before_any_run(complaint, tmp_path):
    (tmp_path / "made" / "race.json").mkdir(parents=True)
    said = complaint(*SMALL, "--out", "made")
    assert "--out made, race.json cannot be written: it is a folder" in said
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.fixture
def raced(tmp_path):
    """The small race, done: what writes its rows again runs nothing."""
    assert race(*SMALL, "--export", "expected.csv", cwd=tmp_path).returncode == 0
    return (tmp_path / "expected.csv").read_bytes()


def test_rows_are_exported_through_links_into_fifos_and_to_devices(tmp_path, raced):
    (tmp_path / "far").mkdir()
    (tmp_path / "link.csv").symlink_to("far/rows.csv")
    assert race(*SMALL, "--json", "--export", "link.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "far" / "rows.csv").read_bytes() == raced

    os.mkfifo(tmp_path / "fifo")
    content = read_in_thread(tmp_path / "fifo")
    assert race(*SMALL, "--json", "--export", "fifo", cwd=tmp_path).returncode == 0
    assert (content(), (tmp_path / "fifo").is_fifo()) == (raced, True)

    device = made_device(tmp_path / "full", FULL)
    result = race(*SMALL, "--json", "--export", "full", cwd=tmp_path)
    assert_one_clear_line(result, "No space left on device: full")
    assert device.is_char_device()


def test_rows_may_be_printed(tmp_path, raced):
    own_stdout(tmp_path)
    result = race(*SMALL, "--export", "stdout", cwd=tmp_path)
    assert (result.returncode, complaints(result.stderr)) == (0, [])
    before, after = result.stdout.encode().split(raced)
    assert b"vsgd-b" in before
    assert after == b"wrote pesky-race.sqlite, stdout\n"


def sizes_in(folder):
    """The sizes of the files in a folder, of which some may go meanwhile."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield path.stat().st_size


def test_ctrl_c_ends_the_wait_for_a_reader(tmp_path, raced):
    os.mkfifo(tmp_path / "fifo")
    temporaries = tmp_path / "temporaries"
    temporaries.mkdir()
    with subprocess.Popen(
        [*COMMAND, "race", *SMALL, "--json", "--export", "fifo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporaries)},
    ) as process:
        try:
            deadline = time.monotonic() + 120
            # What is to be sent is written first; then it waits.
            while len(raced) not in sizes_in(temporaries):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == ("", "pesky: interrupted\n")
        finally:
            process.kill()  # or its end would be waited for, whatever has failed
    assert process.returncode == 130
    assert list(temporaries.iterdir()) == []


def test_a_damaged_data_file_is_named(complaint, tmp_path):
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    (tmp_path / "data" / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"damaged")
    assert "train-images-idx3-ubyte.gz" in complaint("M0", "--data", tmp_path / "data")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace("finished", "vanished"),
        lambda text: text.replace("benchmark", "", 1),
        lambda text: "",
    ],
)
def test_damaged_rows_are_one_clear_line(complaint, tmp_path, damage):
    with Store(tmp_path / "runs.sqlite") as store:
        store.finish(some_key(), some_row())
        store.export(tmp_path / "rows.csv")
    text = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(damage(text))
    assert "rows.csv" in complaint(*SMALL, "--store", "other.sqlite", "--load", "rows.csv", "--json")


def test_a_store_that_cannot_be_used_is_one_clear_line(complaint, tmp_path):
    (tmp_path / "notes.txt").write_text("not a database\n" * 100)
    (tmp_path / "folder").mkdir()
    for name in ("notes.txt", "folder", "notes.txt/below"):
        assert name in complaint(*SMALL, "--store", name, "--json")


def test_a_store_of_another_version_is_one_clear_line(complaint, tmp_path):
    Store(tmp_path / "runs.sqlite").close()
    connection = sqlite3.connect(tmp_path / "runs.sqlite")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    assert "format 99" in complaint(*SMALL, "--store", "runs.sqlite", "--json")


@pytest.mark.parametrize("wrong", ["cut short", "overwritten"])
def test_a_damaged_store_is_one_clear_line(complaint, tmp_path, wrong):
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        for seed in range(400):
            store.finish(some_key(seed=seed), some_row())
    content = path.read_bytes()
    assert len(content) > 5 * 4096
    damaged = (
        content[:9000] if wrong == "cut short" else content[:4096] + b"\xff" * (len(content) - 4096)
    )
    path.write_bytes(damaged)
    assert "runs.sqlite" in complaint(*SMALL, "--store", "runs.sqlite", "--json")


@pytest.fixture
def disk(tmp_path):
    """Mounts small disks, and takes them away in the end."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mounted(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "pesky-test", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError as error:
            pytest.skip(f"no disk can be mounted here: {error}")
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.decode().strip()}")
        return folder

    yield mounted
    if os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True)


# Without room for the tables, for the first runs, or for the later ones.
@pytest.mark.parametrize("size", ["4k", "28k", "36k"])
def test_a_full_disk_is_one_clear_line_and_with_room_the_race_goes_on(tmp_path, disk, size, small_race):
    folder = disk(f"size={size}")
    arguments = [*SMALL, "--json", "--store", folder / "runs.sqlite"]
    assert_one_clear_line(race(*arguments, cwd=tmp_path), "runs.sqlite", "full")
    disk("remount,size=16m")
    assert cells(race(*arguments, cwd=tmp_path))["benchmarks"] == small_race


def test_a_full_disk_for_exported_rows_is_one_clear_line(tmp_path, disk):
    folder = disk("size=4k")
    (folder / "there").write_bytes(b"x" * 4096)
    result = race(*SMALL, "--json", "--export", folder / "rows.csv", cwd=tmp_path)
    assert_one_clear_line(result, "space")
    assert [path.name for path in folder.iterdir()] == ["there"]


def test_a_disk_that_cannot_be_written_to_is_one_clear_line(tmp_path, disk):
    folder = disk("size=8m")
    Store(folder / "runs.sqlite").close()
    disk("remount,ro")
    for name in ("runs.sqlite", "new.sqlite"):
        result = race(*SMALL, "--json", "--store", folder / name, cwd=tmp_path)
        assert_one_clear_line(result, name)


LONGER = ("digits", "--methods", "adagrad", "--grid", "full", "--seeds", "2", "--epochs", "3", "--json")


def test_after_an_interrupt_the_same_command_goes_on(tmp_path):
    path = tmp_path / "pesky-race.sqlite"

    def count(table):
        with contextlib.closing(sqlite3.connect(path)) as reader:
            try:
                return reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            except sqlite3.OperationalError:  # not made yet
                return 0

    with subprocess.Popen(
        [*COMMAND, "race", *LONGER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        deadline = time.monotonic() + 120
        while not path.exists() or count("runs") < 5:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert output == ""
    assert complaints(errors) == ["pesky: interrupted"]
    assert process.returncode == 130
    assert 5 <= count("runs") < 36
    assert count("claims") == 0
    with Store(path) as store:
        kept = store.rows()
    found = cells(race(*LONGER, cwd=tmp_path))
    with Store(path) as store:
        assert set(kept) < set(store.rows())
    other = cells(race(*LONGER, "--store", "other.sqlite", cwd=tmp_path))
    assert found["benchmarks"] == other["benchmarks"]


def test_who_sits_at_a_terminal_sees_how_far_it_is(tmp_path):
    master, slave = pty.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):  # the other end was closed
            while part := os.read(master, 4096):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    result = subprocess.run(
        [*COMMAND, "race", *SMALL, "--json"],
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    os.close(slave)
    reader.join(timeout=30)
    os.close(master)
    assert result.returncode == 0
    assert set(json.loads(result.stdout)["benchmarks"]) == {"digits"}
    text = b"".join(shown).decode()
    for word in ("digits", "best so far", "vsgd-b", "adagrad"):
        assert word in text


@needs_data
def test_the_papers_settings_on_mnist_give_the_cells(tmp_path):
    arguments = ["M0", "--methods", "vsgd-l,sgd", "--grid", "paper", "--seeds", "3", "--epochs", "1"]
    result = race(*arguments, "--json", cwd=tmp_path)
    assert complaints(result.stderr) == []
    rows = {row["method"]: row for row in cells(result)["benchmarks"]["M0"]}
    assert set(rows) == {"vsgd-l", "sgd"}
    assert rows["sgd"]["settings"] == paper.BEST_SETTINGS["M0"]["sgd"]
    for row in rows.values():
        assert (row["settings_tried"], row["tuning_samples"]) == (1, 120_000)
        # One epoch of six, and not far from the end; the paper has no numbers of one.
        assert 6 < row["test"]["mean"] < 11
        for part in ("train", "test"):
            assert (row[part]["runs"], row[part]["paper"], row[part]["agrees"]) == (3, None, None)
