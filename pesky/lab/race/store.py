"""Runs as rows in a SQLite file: never done twice, never lost, shared by races that go on together."""

import csv
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pesky.errors import InputError
from pesky.files import atomic_path

__all__ = ["Row", "RunKey", "Store"]

_MARK = 0x7065736B  # "pesk": SQLite's field for whose file it is
_FORMAT = 1  # of the file; raised when tables change
_CLAIM_LIVES = 60.0  # seconds without a sign of life
_SIGN_OF_LIFE = 10.0

Status = Literal["finished", "diverged", "cut"]


class RunKey(NamedTuple):
    """Everything that determines a run's result."""

    benchmark: str
    data: str  # checksum of the data
    split: str  # which part is trained on, and which measured
    layers: str
    loss: str
    method: str  # with its dialect or reading
    settings: str  # canonical: eta0=3e-2 gamma=1/2
    epochs: int
    seed: int
    numerics: int  # version of the engine's arithmetic
    protocol: str  # L2, preprocessing, readings of methods, and the rule by which runs are cut


@dataclass(frozen=True)
class Row:
    """What came out of a run; errors in percent, or reconstruction errors."""

    status: Status
    train: float | None
    test: float | None
    first_epoch_test: float | None
    diverged_at: int | None
    samples: int  # learnt from
    seconds: float


_KEY_COLUMNS = RunKey._fields
_ROW_COLUMNS = tuple(field.name for field in fields(Row))
_INTEGERS = {"epochs", "seed", "numerics", "diverged_at", "samples"}
_REALS = {"train", "test", "first_epoch_test", "seconds"}
_MAY_BE_EMPTY = {"settings", "train", "test", "first_epoch_test", "diverged_at"}


class Store:
    """A file of runs. Threads of a process may share one `Store`, processes share the file."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, or make it."""
        self.path = Path(path)
        self._lock = threading.RLock()
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=60.0, isolation_level=None, check_same_thread=False
            )
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"the store {self.path} cannot be used: {error}; name another") from None
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def _prepare(self) -> None:
        with self._transaction():
            (mark,) = self._connection.execute("PRAGMA application_id").fetchone()
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and mark != _MARK:
                raise InputError(f"{self.path} is another program's database; name another file")
            if tables and version != _FORMAT:
                raise InputError(
                    f"the store {self.path} has format {version}, this version of pesky reads "
                    f"{_FORMAT}; name another, or export it with the version that made it"
                )
            columns = ", ".join(_column(name) for name in (*_KEY_COLUMNS, *_ROW_COLUMNS))
            key = ", ".join(_KEY_COLUMNS)
            for statement in (
                f"CREATE TABLE IF NOT EXISTS runs ({columns}, PRIMARY KEY ({key}))",
                "CREATE TABLE IF NOT EXISTS claims (run TEXT PRIMARY KEY, owner TEXT, alive_at REAL)",
                f"PRAGMA application_id={_MARK}",
                f"PRAGMA user_version={_FORMAT}",
            ):
                self._connection.execute(statement)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._named_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn what SQLite says (a full disk, a damaged file) into one line with the way out."""
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(
                f"the store {self.path} cannot be used: {error}; make room, or name another file"
            ) from None

    def get(self, key: RunKey) -> Row | None:
        """Return what is known of a run."""
        where = " AND ".join(f"{name}=?" for name in _KEY_COLUMNS)
        with self._lock, self._named_errors():
            found = self._connection.execute(
                f"SELECT {', '.join(_ROW_COLUMNS)} FROM runs WHERE {where}", key
            ).fetchone()
        return None if found is None else Row(*found)

    def rows(self, **wanted: Any) -> list[tuple[RunKey, Row]]:
        """Return all rows whose key has the values `wanted`, in the order of their keys."""
        where = " AND ".join(f"{name}=?" for name in wanted) or "1"
        columns = ", ".join((*_KEY_COLUMNS, *_ROW_COLUMNS))
        order = ", ".join(_KEY_COLUMNS)
        with self._lock, self._named_errors():
            found = self._connection.execute(
                f"SELECT {columns} FROM runs WHERE {where} ORDER BY {order}", tuple(wanted.values())
            ).fetchall()
        split = len(_KEY_COLUMNS)
        return [(RunKey(*values[:split]), Row(*values[split:])) for values in found]

    def claim(self, key: RunKey) -> bool:
        """Take a run for this process; False if it is done, or taken by one that is alive."""
        name, now = _claim_name(key), time.time()
        with self._transaction():
            if self.get(key) is not None:
                return False
            claim = self._connection.execute(
                "SELECT owner, alive_at FROM claims WHERE run=?", (name,)
            ).fetchone()
            if claim is not None and now - claim[1] < _CLAIM_LIVES and _may_be_alive(claim[0]):
                return False
            self._connection.execute("REPLACE INTO claims VALUES (?, ?, ?)", (name, self._owner, now))
        return True

    def finish(self, key: RunKey, row: Row) -> None:
        """Note a run's result and give up its claim."""
        with self._transaction():
            self._insert(key, row)
            self._connection.execute("DELETE FROM claims WHERE run=?", (_claim_name(key),))

    def release(self, key: RunKey) -> None:
        """Give up a claim without a result."""
        with self._transaction():
            self._connection.execute(
                "DELETE FROM claims WHERE run=? AND owner=?", (_claim_name(key), self._owner)
            )

    def _insert(self, key: RunKey, row: Row) -> None:
        values = (*key, *(getattr(row, name) for name in _ROW_COLUMNS))
        marks = ", ".join("?" for _ in values)
        self._connection.execute(f"INSERT OR IGNORE INTO runs VALUES ({marks})", values)

    def export(self, path: Path, **wanted: Any) -> int:
        """Write rows as sorted CSV; return how many."""
        rows = self.rows(**wanted)
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow((*_KEY_COLUMNS, *_ROW_COLUMNS))
            for key, row in rows:
                writer.writerow((*key, *(_cell(getattr(row, name)) for name in _ROW_COLUMNS)))
        return len(rows)

    def load(self, path: Path) -> int:
        """Read what `export` wrote; rows that are there already stay. Return how many were read."""
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                reader = csv.DictReader(stream, strict=True)
                if tuple(reader.fieldnames or ()) != (*_KEY_COLUMNS, *_ROW_COLUMNS):
                    raise InputError(f"{path} is not a file of pesky's rows")
                pairs = [_parsed(line) for line in reader]
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except (UnicodeDecodeError, ValueError, TypeError, csv.Error) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is damaged: {error}") from None
        with self._transaction():
            for key, row in pairs:
                self._insert(key, row)
        return len(pairs)

    def _beat(self) -> None:
        while not self._closing.wait(_SIGN_OF_LIFE):
            # Another process may be writing for long; the next sign of life will do.
            with self._lock, suppress(sqlite3.Error):
                self._connection.execute(
                    "UPDATE claims SET alive_at=? WHERE owner=?", (time.time(), self._owner)
                )

    def close(self) -> None:
        """Give up all claims and close the file."""
        self._closing.set()
        self._heart.join()
        with self._lock:
            with suppress(sqlite3.Error):
                self._connection.execute("DELETE FROM claims WHERE owner=?", (self._owner,))
            self._connection.close()

    def __enter__(self) -> "Store":
        """Use the store until the block ends."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _column(name: str) -> str:
    kind = "INTEGER" if name in _INTEGERS else "REAL" if name in _REALS else "TEXT"
    return f"{name} {kind}"


def _claim_name(key: RunKey) -> str:
    return "|".join(str(part) for part in key)


def _may_be_alive(owner: str) -> bool:
    """Whether the owner of a claim may still run: of this machine's processes it is known."""
    host, pid, _ = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _cell(value: float | str | None) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)  # no digit is lost


def _parsed(line: dict[str, str]) -> tuple[RunKey, Row]:
    if None in line or None in line.values():
        raise ValueError("a line has too few or too many values")
    if line["status"] not in get_args(Status):
        raise ValueError(f"unknown status {line['status']!r}")
    key = RunKey(*(_value(name, line[name]) for name in _KEY_COLUMNS))
    return key, Row(*(_value(name, line[name]) for name in _ROW_COLUMNS))


def _value(name: str, text: str) -> Any:
    if not text and name not in _MAY_BE_EMPTY:
        raise ValueError(f"{name} is missing")
    if name in _INTEGERS:
        return int(text) if text else None
    if name not in _REALS:
        return text
    number = float(text) if text else None
    if number is not None and not math.isfinite(number):
        raise ValueError(f"{name} is {text}")
    return number
