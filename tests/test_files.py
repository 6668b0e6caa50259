"""A file is whole or not there, whatever happens while it is written and whatever is there already."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pesky import files
from pesky.errors import InputError
from pesky.files import atomic_path, obstacle
from tests.devices import FULL, NULL, made_device, own_stdout, read_in_thread


def write(path, text="new"):
    with atomic_path(path) as temporary:
        temporary.write_text(text)


@pytest.fixture
def device(tmp_path):
    return lambda number: made_device(tmp_path / "device", number)


def test_the_new_file_replaces_the_old_one_only_at_the_end(tmp_path):
    path = tmp_path / "result.txt"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(failure, tmp_path):
    path = tmp_path / "result.txt"
    path.write_text("old")

    def write():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise failure

    with pytest.raises(failure):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_keeps_the_suffix_that_numpy_goes_by(tmp_path):
    path = tmp_path / "arrays.npz"
    path.symlink_to("target.without")
    with atomic_path(path) as temporary:
        np.savez(temporary, a=np.arange(3))
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["a"], [0, 1, 2])


@pytest.mark.parametrize("failing", [errno.ENOSPC, errno.EDQUOT])
def test_what_the_system_says_is_said_of_the_file_that_the_user_knows(tmp_path, failing):
    path = tmp_path / "result.txt"
    with pytest.raises(OSError, match="result") as caught, atomic_path(path) as temporary:
        raise OSError(failing, os.strerror(failing), str(temporary))
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="result") as caught, atomic_path(path):
        raise OSError(failing, os.strerror(failing))
    assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="other") as caught, atomic_path(path):
        raise OSError(failing, os.strerror(failing), "other")
    assert caught.value.filename == "other"


# Links


def test_a_link_stays_a_link_and_what_it_leads_to_gets_the_content(tmp_path):
    (tmp_path / "far").mkdir()
    target = tmp_path / "far" / "target.txt"
    target.write_text("old")
    (tmp_path / "second").symlink_to("far/target.txt")
    link = tmp_path / "link.txt"
    link.symlink_to("second")
    with atomic_path(link) as temporary:
        assert temporary.parent == target.parent  # so that replacing is one step
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert (link.readlink(), (tmp_path / "second").readlink()) == (
        Path("second"),
        Path("far/target.txt"),
    )
    assert target.read_text() == "new"
    assert list((tmp_path / "far").iterdir()) == [target]


def test_a_dangling_link_makes_its_target(tmp_path):
    link = tmp_path / "link.txt"
    link.symlink_to("target.txt")
    write(link)
    assert link.is_symlink()
    assert (tmp_path / "target.txt").read_text() == "new"


def test_a_dangling_link_into_no_folder_is_refused(tmp_path):
    link = tmp_path / "link.txt"
    link.symlink_to("nowhere/target.txt")
    with pytest.raises(InputError, match=r"link\.txt .*nowhere does not exist"):
        write(link)
    assert list(tmp_path.iterdir()) == [link]


def test_links_in_a_loop_are_refused(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(InputError, match=r"one cannot be written: .*loop"):
        write(tmp_path / "one")
    assert ((tmp_path / "one").readlink(), (tmp_path / "two").readlink()) == (Path("two"), Path("one"))


# What is no file


@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_is_refused(tmp_path, linked):
    path = tmp_path / "path"
    (tmp_path / "folder").mkdir()
    path.symlink_to("folder") if linked else path.mkdir()
    with pytest.raises(InputError, match="path cannot be written: it is a folder"):
        write(path)
    assert path.is_dir()


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="below cannot be written: Not a directory"):
        write(tmp_path / "file" / "below")


def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(InputError, match="it is a socket"):
            write(tmp_path / "socket")


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    # Root may write everywhere, so the system's answer is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
    with pytest.raises(InputError, match=rf"the folder {tmp_path} is not writable"):
        write(tmp_path / "new.txt")


def test_a_file_that_is_write_protected_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "result.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda where, mode: str(where) != str(path))
    with pytest.raises(InputError, match="write-protected"):
        write(path)
    assert path.read_text() == "old"


def test_a_fifo_stays_one_and_its_reader_gets_all(tmp_path):
    path = tmp_path / "arrays.npz"
    os.mkfifo(path)
    content = read_in_thread(path)
    with atomic_path(path) as temporary:
        np.savez(temporary, a=np.arange(30_000))  # NumPy seeks, and a pipe holds 64 KiB
        expected = temporary.read_bytes()
    assert content() == expected
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_that_leaves_is_named(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)

    def glance():
        with path.open("rb") as stream:
            stream.read(1)

    reader = threading.Thread(target=glance)
    reader.start()
    with pytest.raises(InputError, match="fifo cannot be written: its reader left"):
        write(path, "x" * 1_000_000)
    reader.join()
    assert path.is_fifo()


def test_a_writer_that_fails_sends_nothing(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def interrupted():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.read(descriptor, 100) == b""
    os.close(descriptor)


@pytest.mark.parametrize("linked", [False, True])
def test_a_device_is_written_to_and_stays_one(tmp_path, device, linked):
    path = device(NULL)
    if linked:
        (tmp_path / "link").symlink_to("device")
    write(tmp_path / "link" if linked else path)
    assert path.is_char_device()
    assert path.stat().st_rdev == NULL


@pytest.mark.parametrize("length", [3, 1_000_000])
def test_a_full_device_is_an_error_that_names_it_and_stays_one(device, length):
    path = device(FULL)
    with pytest.raises(OSError, match="device") as caught:
        write(path, "x" * length)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.is_char_device()
    assert path.stat().st_rdev == FULL


def test_who_seeks_is_refused_streams(tmp_path, device):
    os.mkfifo(tmp_path / "fifo")
    assert obstacle(tmp_path / "fifo", seeks=True) == "it is a FIFO; name a file"
    assert obstacle(tmp_path / "fifo") is None
    assert obstacle(device(NULL), seeks=True) == "it is a device; name a file"


PRINTS = """
import sys
from pathlib import Path
from pesky.files import atomic_path
print("before")
with atomic_path(Path(sys.argv[1])) as temporary:
    temporary.write_text("written\\n")
print("after")
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
def test_what_is_written_to_standard_output_stands_among_what_is_printed(tmp_path, kind):
    link = own_stdout(tmp_path)
    command = [sys.executable, "-c", PRINTS, str(link)]
    if kind == "pipe":
        printed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    elif kind == "socket":
        ours, theirs = socket.socketpair()
        subprocess.run(command, stdout=theirs, check=True)
        theirs.close()
        printed = ours.recv(1000)
        ours.close()
    else:
        with (tmp_path / "printed").open("wb") as stream:
            subprocess.run(command, stdout=stream, check=True)
        printed = (tmp_path / "printed").read_bytes()
    assert printed == b"before\nwritten\nafter\n"
    assert link.is_symlink()


# Permissions


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o666])
def test_permissions_of_a_file_are_kept(tmp_path, mode):
    path = tmp_path / "result.txt"
    path.write_text("old")
    path.chmod(mode)
    with atomic_path(path) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600  # half-written, it is nobody else's
        temporary.write_text("new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_permissions_that_any_has(tmp_path):
    write(tmp_path / "ours")
    (tmp_path / "usual").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_of_a_file_is_kept(tmp_path):
    path = tmp_path / "result.txt"
    path.write_text("old")
    os.chown(path, 12, 34)
    write(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid) == (12, 34)


# Leftovers

WRITER = """
import sys
from pathlib import Path
from pesky.files import atomic_path
with atomic_path(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print(temporary, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def writer():
    """Start processes that are in the midst of writing; they end when their input does."""
    started = []

    def start(path):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, Path(process.stdout.readline().rstrip("\n"))

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.mark.subprocess
@pytest.mark.parametrize("linked", [False, True])
def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_the_file(
    tmp_path, writer, linked
):
    path = tmp_path / "result.txt"
    if linked:
        (tmp_path / "folder").mkdir()
        path.symlink_to("folder/target")
    process, left = writer(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left.exists()
    assert not path.exists()
    write(tmp_path / "other.txt")
    assert left.exists()  # it is of another file
    write(path)
    assert not left.exists()
    assert path.read_text() == "new"


@pytest.mark.subprocess
def test_what_a_process_that_is_alive_writes_is_left_to_it(tmp_path, writer):
    path = tmp_path / "result.txt"
    process, temporary = writer(path)
    write(path)
    assert path.read_text() == "new"
    assert temporary.exists()
    process.communicate("")
    assert process.returncode == 0
    assert path.read_text() == "half"
    assert list(tmp_path.iterdir()) == [path]


def test_two_threads_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "result.txt"
    with atomic_path(path) as first:
        first.write_text("first")
        write(path, "second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def leftover(path, monkeypatch, host):
    """A temporary whose writer was killed on some machine."""
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: host)
        patch.setattr(files.fcntl, "flock", lambda descriptor, operation: None)
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            kept = temporary.with_name("kept")
            os.link(temporary, kept)
    path.unlink()
    return kept.rename(temporary)


@pytest.mark.parametrize(("days", "stays"), [(0.5, True), (1.5, False)])
def test_leftovers_of_other_machines_must_be_old_as_locks_may_not_reach_there(
    tmp_path, monkeypatch, days, stays
):
    left = leftover(tmp_path / "result.txt", monkeypatch, "elsewhere")
    then = time.time() - days * 86_400
    os.utime(left, (then, then))
    write(tmp_path / "result.txt")
    assert left.exists() == stays


def test_without_locks_nothing_is_removed_and_everything_is_written(tmp_path, monkeypatch):
    left = leftover(tmp_path / "result.txt", monkeypatch, socket.gethostname())

    def none(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", none)
    write(tmp_path / "result.txt")
    assert (tmp_path / "result.txt").read_text() == "new"
    assert left.exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_only_has_the_name_of_a_leftover_stays(tmp_path, monkeypatch, kind):
    left = leftover(tmp_path / "result.txt", monkeypatch, socket.gethostname())
    left.unlink()
    (tmp_path / "precious").write_text("old")
    make = {"link": lambda: left.symlink_to("precious"), "fifo": lambda: os.mkfifo(left)}
    make.get(kind, left.mkdir)()
    write(tmp_path / "result.txt")
    assert os.path.lexists(left)
    assert (tmp_path / "precious").read_text() == "old"


def test_a_temporary_taken_for_a_leftover_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    taken = []
    flock = files.fcntl.flock

    def take_first(descriptor, operation):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(files.fcntl, "flock", take_first)
    with atomic_path(tmp_path / "result.txt") as temporary:
        assert temporary.exists()
        assert temporary != taken[0]
        temporary.write_text("new")
    assert (tmp_path / "result.txt").read_text() == "new"
