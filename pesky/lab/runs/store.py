"""Runs as rows in a SQLite file: never done twice, never lost, shared by all who go on together."""

import csv
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Self

from pesky.errors import InputError
from pesky.files import atomic_path, obstacle
from pesky.lab.runs.layout import ForeignRowsError, Key, Layout, Row

__all__ = ["RunStore"]

_CLAIM_LIVES = 60.0  # seconds without a sign of life
_SIGN_OF_LIFE = 10.0


class RunStore(Generic[Key, Row]):
    """A file of runs. Threads of a process may share one, processes share the file."""

    def __init__(self, path: str | Path, layout: Layout[Key, Row]) -> None:
        """Open the file, or make it."""
        self.path = Path(path)
        self.layout = layout
        self._lock = threading.RLock()
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the store {self.path} cannot be used: {error}; name another") from None
        # SQLite would take a device for an empty database, and put its journal beside it.
        reason = obstacle(self.path, seeks=True)
        if reason is not None:
            raise InputError(f"the store {self.path} cannot be used: {reason}")
        try:
            self._connection = sqlite3.connect(
                self.path, timeout=60.0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
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
            if tables and mark != self.layout.mark:
                raise InputError(f"{self.path} is another program's database; name another file")
            if tables and version != self.layout.version:
                raise InputError(
                    f"the store {self.path} has format {version}, this version of pesky reads "
                    f"{self.layout.version}; name another, or export it with the version that made it"
                )
            columns = ", ".join(column.declaration for column in self.layout.columns)
            key = ", ".join(self.layout.key_names)
            for statement in (
                f"CREATE TABLE IF NOT EXISTS runs ({columns}, PRIMARY KEY ({key}))",
                "CREATE TABLE IF NOT EXISTS claims (run TEXT PRIMARY KEY, owner TEXT, alive_at REAL)",
                f"PRAGMA application_id={self.layout.mark}",
                f"PRAGMA user_version={self.layout.version}",
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

    def get(self, key: Key) -> Row | None:
        """Return what is known of a run."""
        where = " AND ".join(f"{name}=?" for name in self.layout.key_names)
        with self._lock, self._named_errors():
            found = self._connection.execute(
                f"SELECT {', '.join(self.layout.row_names)} FROM runs WHERE {where}", key
            ).fetchone()
        return None if found is None else self.layout.row(*found)

    def rows(self, **wanted: Any) -> list[tuple[Key, Row]]:
        """Return all rows whose key has the values `wanted`, in the order of their keys."""
        where = " AND ".join(f"{name}=?" for name in wanted) or "1"
        columns = ", ".join(self.layout.names)
        order = ", ".join(self.layout.key_names)
        with self._lock, self._named_errors():
            found = self._connection.execute(
                f"SELECT {columns} FROM runs WHERE {where} ORDER BY {order}", tuple(wanted.values())
            ).fetchall()
        return [self.layout.pair(values) for values in found]

    def claim(self, key: Key) -> bool:
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

    def finish(self, key: Key, row: Row) -> None:
        """Note a run's result and give up its claim."""
        with self._transaction():
            self._insert(key, row)
            self._connection.execute("DELETE FROM claims WHERE run=?", (_claim_name(key),))

    def release(self, key: Key) -> None:
        """Give up a claim without a result."""
        with self._transaction():
            self._connection.execute(
                "DELETE FROM claims WHERE run=? AND owner=?", (_claim_name(key), self._owner)
            )

    def _insert(self, key: Key, row: Row) -> None:
        values = self.layout.values(key, row)
        marks = ", ".join("?" for _ in values)
        self._connection.execute(f"INSERT OR IGNORE INTO runs VALUES ({marks})", values)

    def export(self, path: Path, **wanted: Any) -> int:
        """Write rows as sorted CSV; return how many."""
        rows = self.rows(**wanted)
        with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(self.layout.names)
            for key, row in rows:
                writer.writerow(_cell(value) for value in self.layout.values(key, row))
        return len(rows)

    def load(self, path: Path) -> int:
        """Read what `export` wrote; rows that are there already stay. Return how many were read."""
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                reader = csv.DictReader(stream, strict=True)
                if tuple(reader.fieldnames or ()) != self.layout.names:
                    raise ForeignRowsError(path, reader.fieldnames or (), self.layout.names)
                pairs = [self.layout.parsed(line) for line in reader]
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

    def __enter__(self) -> Self:
        """Use the store until the block ends."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()


def _claim_name(key: tuple[Any, ...]) -> str:
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
