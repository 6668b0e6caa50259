"""The paper's data sets, read from a folder, checked and preprocessed as the paper does."""

import gzip
import hashlib
import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pesky.errors import InputError

__all__ = [
    "DATASETS",
    "FILES",
    "DataFile",
    "DataSet",
    "FileState",
    "cache_folder",
    "centred",
    "data_folder",
    "data_folders",
    "every_fifth",
    "file_state",
    "find_folder",
    "load",
    "where_to_put",
]

FileState = Literal["ok", "missing", "truncated", "corrupt", "unreadable"]


@dataclass(frozen=True)
class DataFile:
    """A file as published: where it lies below the data folder, its size and its SHA-256."""

    path: str
    size: int
    sha256: str


FILES: dict[str, tuple[DataFile, ...]] = {
    "mnist": (
        DataFile(
            "mnist/train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        DataFile(
            "mnist/train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        DataFile(
            "mnist/t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        DataFile(
            "mnist/t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "cifar10": (
        DataFile(
            "cifar10/data_batch_1.bin",
            30_730_000,
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        ),
        DataFile(
            "cifar10/test_batch.bin",
            30_730_000,
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
    ),
}
DATASETS = (*FILES, "digits")

_CIFAR_RECORD = 1 + 3 * 32 * 32  # a label byte, then red, green and blue planes


@dataclass(frozen=True)
class DataSet:
    """Inputs in float32, less the training mean of each dimension; labels from 0 to 9."""

    name: str
    train_inputs: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def cache_folder() -> Path:
    """Return the folder in the user's cache where fetched data goes; it need not exist."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():  # the XDG specification has relative ones ignored
        return Path(named) / "pesky" / "data"
    try:
        return Path.home() / ".cache" / "pesky" / "data"
    except RuntimeError:  # a user without a home, as in some containers
        raise InputError("no home folder is known; set PESKY_DATA (or --data) to a folder") from None


def data_folders(given: str | Path | None = None) -> list[Path]:
    """Return the folders in which data is looked for, in order: `given`, PESKY_DATA, the cache."""
    folders = []
    if given is not None:
        if not Path(given).is_dir():  # named on purpose, so a slip is told
            raise InputError(f"the data folder {given} does not exist; name one that does")
        folders.append(Path(given))
    if os.environ.get("PESKY_DATA"):
        folders.append(Path(os.environ["PESKY_DATA"]))
    with suppress(InputError):
        folders.append(cache_folder())
    return list(dict.fromkeys(folders))


def find_folder(name: str, given: str | Path | None = None) -> Path | None:
    """Return the first folder that has a file of the data set, or None.

    One file is enough: a set that lacks another is told as such, not replaced by one elsewhere.
    """
    for folder in data_folders(given):
        if any((folder / file.path).is_file() for file in FILES[name]):
            return folder
    return None


def data_folder(name: str, given: str | Path | None = None) -> Path:
    """Return the folder that holds the data set: `given`, the one in PESKY_DATA or the cache."""
    found = find_folder(name, given)
    if found is not None:
        return found
    folders = data_folders(given)
    if not folders:
        raise InputError(f"{name} has no folder to be looked for in; set PESKY_DATA (or --data) to one")
    looked_in = " or ".join(str(folder) for folder in folders)
    raise InputError(
        f"{name} is not in {looked_in}; run pesky data fetch {name}, "
        f"or {where_to_put(name, folders[0])} (--data or PESKY_DATA names another folder)"
    )


def where_to_put(name: str, folder: Path) -> str:
    """Say what a user without a network is to do."""
    files = ", ".join(Path(file.path).name for file in FILES[name])
    return f"put the published {files} into {folder / name}"


def file_state(path: Path, file: DataFile) -> FileState:
    """Compare a file with the published one."""
    try:
        with path.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            if size < file.size:
                return "truncated"
            same = (
                size == file.size and hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
            )
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "unreadable"
    return "ok" if same else "corrupt"


def load(name: str, folder: str | Path | None = None) -> DataSet:
    """Read a data set by name. `digits` comes with scikit-learn and needs no folder.

    The others are looked for in `folder`, then in PESKY_DATA, then in the user's cache.

    Pixels are divided by their largest value; then the training mean is subtracted along each
    dimension. Of `digits` every fifth sample, from the fifth on, is in the test set (359 of 1797).
    """
    if name not in DATASETS:
        raise InputError(f"unknown data set {name!r}; there are {', '.join(DATASETS)}")
    return _load(name, None if name == "digits" else data_folder(name, folder).resolve())


@lru_cache(maxsize=2)
def _load(name: str, folder: Path | None) -> DataSet:
    if folder is None:
        return _prepared(name, *_read_digits(), brightest=16)
    contents = [_checked(folder, name, file) for file in FILES[name]]
    parts = _read_mnist(contents) if name == "mnist" else _read_cifar(contents)
    return _prepared(name, *parts, brightest=255)


def _prepared(
    name: str,
    train_pixels: NDArray[Any],
    train_labels: NDArray[Any],
    test_pixels: NDArray[Any],
    test_labels: NDArray[Any],
    *,
    brightest: int,
) -> DataSet:
    train, test = centred(
        *(pixels.astype(np.float32) / np.float32(brightest) for pixels in (train_pixels, test_pixels))
    )
    return DataSet(name, train, train_labels.astype(np.int64), test, test_labels.astype(np.int64))


def centred(
    train: NDArray[np.float32], test: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Subtract the training mean along each dimension."""
    mean = train.mean(axis=0, dtype=np.float64).astype(np.float32)
    return train - mean, test - mean


def every_fifth(samples: int) -> NDArray[np.bool_]:
    """Return which of so many samples are in the test set: every fifth, from the fifth on."""
    return np.asarray(np.arange(samples) % 5 == 4)


def _checked(folder: Path, name: str, file: DataFile) -> bytes:
    path = folder / file.path
    fix = f"run pesky data verify {name} --replace --data {shlex.quote(str(folder))}"
    if not path.is_file():
        raise InputError(f"{path} is missing; put the published file there, or {fix}")
    content = path.read_bytes()
    if len(content) != file.size:
        raise InputError(f"{path} has {len(content)} bytes, the published file {file.size}; {fix}")
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise InputError(f"{path} is damaged: its SHA-256 is not the published file's; {fix}")
    return content


def _read_mnist(contents: list[bytes]) -> list[NDArray[Any]]:
    """IDX files: 16 bytes before the pixels, 8 before the labels."""
    plain = [gzip.decompress(content) for content in contents]
    return [
        np.frombuffer(plain[0], np.uint8, offset=16).reshape(-1, 784),
        np.frombuffer(plain[1], np.uint8, offset=8),
        np.frombuffer(plain[2], np.uint8, offset=16).reshape(-1, 784),
        np.frombuffer(plain[3], np.uint8, offset=8),
    ]


def _read_cifar(contents: list[bytes]) -> list[NDArray[Any]]:
    train, test = (np.frombuffer(part, np.uint8).reshape(-1, _CIFAR_RECORD) for part in contents)
    return [train[:, 1:], train[:, 0], test[:, 1:], test[:, 0]]


def _read_digits() -> list[NDArray[Any]]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    tested = every_fifth(len(labels))
    return [pixels[~tested], labels[~tested], pixels[tested], labels[tested]]
