"""Tasks on characters: source text of Python's standard library, the last tenth held out."""

import hashlib
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.errors import InputError
from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, mean_over

__all__ = ["LENGTH", "Text", "checksum", "next_character", "predicting", "source_text", "windows"]

LENGTH = 64  # characters in a window
_WINDOWS = 16  # in a batch
_JUDGED = 256  # windows that a loss is measured on
_CHARACTERS = 3_000_000


class Text(NamedTuple):
    """A text as numbers of its symbols."""

    train: Tensor
    held_out: Tensor
    symbols: int
    checksum: str
    alphabet: str  # in the order of the numbers


@lru_cache(maxsize=1)
def source_text() -> Text:
    """Read the files of the standard library's top folder in their order, ASCII characters only."""
    folder = Path(sysconfig.get_path("stdlib"))
    parts: list[bytes] = []
    missing = _CHARACTERS
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes().decode("utf-8", "ignore").encode("ascii", "ignore")
        parts.append(content[:missing])
        missing -= len(parts[-1])
        if not missing:
            break
    if missing:
        raise InputError(
            f"{folder} has only {_CHARACTERS - missing} characters of source text, {_CHARACTERS} are "
            "needed; use a Python that comes with its sources, or leave these tasks out by --tasks"
        )
    content = b"".join(parts)
    alphabet, numbers = torch.unique(
        torch.frombuffer(bytearray(content), dtype=torch.uint8), return_inverse=True
    )
    split = len(numbers) - len(numbers) // 10
    checksum = hashlib.sha256(content).hexdigest()[:16]
    letters = bytes(alphabet.tolist()).decode("ascii")
    return Text(numbers[:split], numbers[split:], len(alphabet), checksum, letters)


def checksum() -> str:
    """Return the sum of this Python's text."""
    return source_text().checksum


def predicting(model: Callable[[int], nn.Module], seed: int, folder: Path | None) -> Instance:
    """Predict each next character; `model` is given the number of symbols. No folder is needed."""
    text = source_text()

    def batch(step: int) -> Batch:
        starts = torch.randint(len(text.train) - LENGTH, (_WINDOWS,), generator=generator(seed, step))
        return windows(text.train, starts)

    judged = [
        windows(part, torch.linspace(0, len(part) - LENGTH - 1, _JUDGED).long())
        for part in (text.train, text.held_out)
    ]

    def evaluate(trained: nn.Module) -> Measured:
        return Measured(*(mean_over(next_character, trained, one) for one in judged))

    return Instance(model(text.symbols), batch, next_character, evaluate)


def windows(text: Tensor, starts: Tensor, length: int = LENGTH) -> Batch:
    """Return the characters from each start on, and those that come next after each."""
    places = starts[:, None] + torch.arange(length)
    return text[places], text[places + 1]


def next_character(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of the characters that come next."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets.flatten())
