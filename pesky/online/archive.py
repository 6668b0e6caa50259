"""Reading and writing ``.npz`` files: no pickle, whole or not at all."""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pesky.errors import InputError
from pesky.files import atomic_path

__all__ = ["read_arrays", "write_arrays"]


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write an archive; a file that was there stays until the new one is whole."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def read_arrays(path: Path, needed: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Read an archive that must hold the arrays named."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged or not one of pesky's files: {error}") from None
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}; it is not one of pesky's files")
    return arrays
