"""A user's own data as a benchmark: samples with classes, from an ``.npz`` or a ``.csv`` file."""

import csv
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pesky.errors import InputError
from pesky.lab.benchmarks import Benchmark, Task
from pesky.lab.datasets import centred, every_fifth

__all__ = ["SUFFIXES", "is_own_file", "own_benchmark"]

SUFFIXES = (".npz", ".csv")
_NAMES = "X and y, or X_train, y_train, X_test and y_test"


class _Part(NamedTuple):
    """Samples and their classes, as a file has them; `origin` says of what part to complain."""

    origin: str
    inputs: NDArray[Any]
    labels: NDArray[Any]


def is_own_file(name: str) -> bool:
    """Whether a benchmark's name is that of a file."""
    return Path(name).suffix.lower() in SUFFIXES


def own_benchmark(path: Path, layers: Sequence[int]) -> tuple[Benchmark, Task]:
    """Read a file; return the benchmark, named after it, and its data.

    A CSV file has a sample a line, its class last; names in its first line are passed over. An
    ``.npz`` file holds X and y, or X_train, y_train, X_test and y_test. Unless there are test samples,
    every fifth sample is one. Inputs are less their training mean; classes are numbered in order.
    """
    with _named_errors(path):
        parts = _read_csv(path) if path.suffix.lower() == ".csv" else _read_npz(path)
    inputs = [_checked_inputs(part) for part in parts]
    classes, numbers = np.unique(
        np.concatenate([_checked_labels(part) for part in parts]), return_inverse=True
    )
    _check_layers(path, tuple(layers), inputs, len(classes))
    if len(parts) == 1:
        tested = every_fifth(len(inputs[0]))
        if not tested.any():
            raise InputError(
                f"the file {path} has {len(tested)} samples; every fifth tests, so give 5 or more"
            )
        inputs = [inputs[0][~tested], inputs[0][tested]]
        labels = [numbers[~tested], numbers[tested]]
    else:
        labels = np.split(numbers, [len(inputs[0])])
    train, test = centred(*inputs)
    return Benchmark(path.name, str(path), tuple(layers)), Task(train, labels[0], test, labels[1])


def _check_layers(
    path: Path, layers: tuple[int, ...], inputs: list[NDArray[np.float32]], classes: int
) -> None:
    widths = dict.fromkeys(part.shape[1] for part in inputs)
    if len(widths) > 1:
        raise InputError(
            f"the file {path} has {' and '.join(map(str, widths))} inputs a sample; make them equal"
        )
    (width,) = widths
    if (layers[0], layers[-1]) != (width, classes):
        fitting = ",".join(map(str, (width, *layers[1:-1], classes)))
        raise InputError(
            f"layers={','.join(map(str, layers))} do not fit {path}, which has {width} inputs and "
            f"{classes} classes; such as {fitting} would"
        )


def _checked_inputs(part: _Part) -> NDArray[np.float32]:
    if part.inputs.dtype.kind not in "fiub" or part.inputs.ndim < 2 or not part.inputs.size:
        raise InputError(
            f"{part.origin}: the inputs must be numbers of shape (samples, inputs); got "
            f"{part.inputs.dtype} of shape {part.inputs.shape}"
        )
    with np.errstate(over="ignore"):
        inputs = part.inputs.reshape(len(part.inputs), -1).astype(np.float32)
    finite = np.isfinite(inputs).all(axis=1)
    if not finite.all():
        raise InputError(
            f"{part.origin}: sample {int(np.argmin(finite)) + 1} has NaN, infinity or a number beyond "
            "3e38; give finite ones"
        )
    return inputs


def _checked_labels(part: _Part) -> NDArray[Any]:
    labels = part.labels
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind not in "iubfUS" or labels.shape != (len(part.inputs),):
        raise InputError(
            f"{part.origin}: there must be one class a sample, a number or a text; got {labels.dtype} "
            f"of shape {labels.shape} for {len(part.inputs)} samples"
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError(f"{part.origin}: every sample needs a class; some have NaN or infinity")
    return labels


def _read_npz(path: Path) -> list[_Part]:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        names = {name.lower(): name for name in archive.files}  # Keras writes x_train
        for wanted in ((("x", "y"),), (("x_train", "y_train"), ("x_test", "y_test"))):
            if all(name in names for pair in wanted for name in pair):
                return [
                    _Part(f"in {path}, {names[x]} and {names[y]}", archive[names[x]], archive[names[y]])
                    for x, y in wanted
                ]
    raise InputError(
        f"the file {path} must hold {_NAMES}; it has {', '.join(names.values()) or 'nothing'}"
    )


def _read_csv(path: Path) -> list[_Part]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(_samples(path, stream))
    if not rows:
        raise InputError(f"the file {path} has no samples; write one a line, its class last")
    labels = [label for _, label in rows]
    return [_Part(f"in {path}", np.array([inputs for inputs, _ in rows]), _as_numbers(labels))]


def _samples(path: Path, stream: Iterable[str]) -> Iterator[tuple[NDArray[np.float32], str]]:
    reader = csv.reader(stream, strict=True)
    columns = 0
    for row in reader:
        where = f"in {path}, line {reader.line_num}"
        if not row:
            continue
        *cells, label = (cell.strip() for cell in row)
        if not columns:
            columns = len(row)
            if columns < 2:
                raise InputError(f"{where}: a sample is its inputs and its class with commas between")
            if not any(map(_is_number, cells)):  # names of columns
                continue
        if len(row) != columns:
            raise InputError(f"{where}: {len(row)} values where the first line has {columns}")
        if not label:
            raise InputError(f"{where}: the class, which comes last, is missing")
        yield _inputs(where, cells), label


def _inputs(where: str, cells: list[str]) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # told with the other numbers that are not finite
            return np.array(cells, np.float32)
    except ValueError:
        wrong = next(cell for cell in cells if not _is_number(cell))
        raise InputError(f"{where}: inputs must be numbers; got {wrong!r}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_numbers(labels: list[str]) -> NDArray[Any]:
    """Return classes as numbers if all are, so that 10 comes after 9 and 1 is 1.0."""
    return np.array(labels, np.float64 if all(map(_is_number, labels)) else np.str_)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Turn whatever an absent, damaged or foreign file makes Python say into one line."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (
        *(OSError, ValueError, TypeError, AttributeError, EOFError, NotImplementedError),
        *(csv.Error, zipfile.BadZipFile, zlib.error),
    ) as error:
        raise InputError(
            f"the file {path} cannot be read as {path.suffix[1:].upper()}: {error}"
        ) from None
