"""What a file of runs consists of: its columns, as a key's and a row's annotations say."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from pesky.errors import InputError

__all__ = ["ForeignRowsError", "Key", "Layout", "Row"]

_SQL_NAMES = {int: "INTEGER", float: "REAL", str: "TEXT"}

Key = TypeVar("Key", bound=tuple[Any, ...])
Row = TypeVar("Row")


class ForeignRowsError(InputError):
    """A file that holds something else than the rows wanted, sound as it may be."""

    def __init__(self, path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
        """Compare the columns."""
        found_ones = f"its columns are {_begun(found)}" if found else "it is empty"
        self.reason = f"{found_ones}; those wanted are {_begun(wanted)}"
        super().__init__(f"{path} holds other rows: {self.reason}")


def _begun(names: Sequence[str]) -> str:
    shown = [textwrap.shorten(name, 20, placeholder="...") for name in names[:3]]
    return ", ".join([*shown, "..."] if len(names) > len(shown) else shown)


class _Column:
    """A column as its annotation says: a number or text, of some choices, that may be missing."""

    def __init__(self, name: str, annotation: Any, may_be_blank: bool) -> None:
        options = get_args(annotation) if NoneType in get_args(annotation) else (annotation,)
        (kind,) = (option for option in options if option is not NoneType)
        self.name = name
        self.choices: tuple[str, ...] = get_args(kind) if get_origin(kind) is Literal else ()
        self.kind: type = str if self.choices else kind
        self.may_be_missing = NoneType in options
        self.may_be_blank = may_be_blank or self.may_be_missing

    @property
    def declaration(self) -> str:
        """The column in SQL."""
        return f"{self.name} {_SQL_NAMES[self.kind]}"

    def parsed(self, text: str) -> Any:
        """Return the value that an exported cell stands for."""
        if not text and not self.may_be_blank:
            raise ValueError(f"{self.name} is missing")
        if not text and self.may_be_missing:
            return None
        if self.choices and text not in self.choices:
            raise ValueError(f"unknown {self.name} {text!r}")
        value = self.kind(text)
        if self.kind is float and not math.isfinite(value):
            raise ValueError(f"{self.name} is {text}")
        return value


@dataclass(frozen=True)
class Layout(Generic[Key, Row]):
    """What a file of runs consists of: a named tuple that determines it, a dataclass of its result."""

    key: type[Key]
    row: type[Row]
    mark: int  # SQLite's field for whose file it is
    version: int  # of the file; raised when tables change
    may_be_blank: frozenset[str] = frozenset()  # texts

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The columns that determine a run."""
        return tuple(self.key._fields)  # type: ignore[attr-defined]

    @cached_property
    def row_names(self) -> tuple[str, ...]:
        """The columns of what came out."""
        return tuple(field.name for field in fields(self.row))  # type: ignore[arg-type]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return (*self.key_names, *self.row_names)

    @cached_property
    def columns(self) -> list[_Column]:
        """All columns with their types."""
        hints = {**get_type_hints(self.key), **get_type_hints(self.row)}
        return [_Column(name, hints[name], name in self.may_be_blank) for name in self.names]

    def pair(self, values: tuple[Any, ...]) -> tuple[Key, Row]:
        """Return key and row of the values of all columns."""
        split = len(self.key_names)
        return self.key(*values[:split]), self.row(*values[split:])

    def values(self, key: Key, row: Row) -> tuple[Any, ...]:
        """Undo `pair`."""
        return (*key, *(getattr(row, name) for name in self.row_names))

    def parsed(self, line: dict[str, str]) -> tuple[Key, Row]:
        """Return key and row of an exported line."""
        if None in line or None in line.values():
            raise ValueError("a line has too few or too many values")
        return self.pair(tuple(column.parsed(line[column.name]) for column in self.columns))
