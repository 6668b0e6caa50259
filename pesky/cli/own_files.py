"""Benchmarks as a user names them: the paper's, or files of their own with ``--layers``."""

from collections.abc import Sequence
from typing import Annotated

import typer

from pesky.errors import InputError
from pesky.lab.benchmarks import BENCHMARKS
from pesky.lab.own_data import SUFFIXES, is_own_file

__all__ = ["BENCHMARK_HELP", "Layers", "check_benchmark", "own_layers"]

BENCHMARK_HELP = f"Of {', '.join(BENCHMARKS)}, or a {' or '.join(SUFFIXES)} file of your own."
Layers = Annotated[
    str | None,
    typer.Option(
        "--layers", help="Of your own files: units from the inputs to the classes, such as 20,50,3."
    ),
]


def check_benchmark(name: str) -> None:
    """Refuse what is neither a benchmark nor may be a file with samples."""
    if name not in BENCHMARKS and not is_own_file(name):
        raise InputError(
            f"unknown benchmark {name!r}; there are {', '.join(BENCHMARKS)}, "
            f"and files of your own that end in {' or '.join(SUFFIXES)}"
        )


def own_layers(text: str | None, benchmarks: Sequence[str]) -> tuple[int, ...]:
    """Return the units of each layer that ``--layers`` names; none if no benchmark is a user's file."""
    own = [name for name in benchmarks if is_own_file(name)]
    if text is None:
        if own:
            raise InputError(
                f"--layers is missing; {own[0]} needs it: inputs, hidden units and classes, "
                "such as 20,50,3"
            )
        return ()
    if not own:
        raise InputError(
            f"--layers {text} is for files of your own; {benchmarks[0]} has its own, so leave it out"
        )
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(f"--layers must be units with commas between, such as 20,50,3; got {text!r}")
    return sizes
