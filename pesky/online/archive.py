"""Reading and writing ``.npz`` files: no pickle, whole or not at all."""

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pesky.errors import InputError
from pesky.files import atomic_path

__all__ = ["name_damage", "read_arrays", "write_arrays"]


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write an archive; a file that was there stays until the new one is whole."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        # No word about pickles: NumPy 1.26 would take it for an array.
        np.savez(stream, **arrays)  # type: ignore[arg-type]


@contextmanager
def name_damage(path: Path) -> Iterator[None]:
    """Turn whatever a damaged or foreign file makes Python say into one line that names the file."""
    try:
        yield
    except InputError:
        raise
    except (
        *(OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, NotImplementedError),
        *(zipfile.BadZipFile, zlib.error),
    ) as error:
        raise InputError(f"{path} is damaged or not one of pesky's files: {error}") from None


def read_arrays(path: Path, needed: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read an archive that must hold the arrays named."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    with stream, name_damage(path), np.load(stream, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}; it is not one of pesky's files")
    return arrays
