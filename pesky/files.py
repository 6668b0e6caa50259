"""Files that are whole or not there: written through links, never in place of a device.

Whoever writes gets a temporary file. In the end it replaces the file that the path leads to, in one
step; a FIFO or a character device, such as ``/dev/stdout``, gets its content as a stream instead.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pesky.errors import InputError

if sys.platform != "win32":
    import fcntl

__all__ = ["atomic_path", "obstacle"]

_DAY = 86_400.0  # seconds
_NAP = 0.05  # seconds


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end it replaces `path`, on failure it is removed.

    A symbolic link stays one: what it leads to is replaced, and keeps its owner and permissions. The
    temporary is in the same folder, so that replacing is a rename, and it ends as `path` does, because
    `np.savez` goes by the suffix. What a killed process left there of the same file is removed first.
    """
    reason = obstacle(path)
    if reason is not None:
        raise InputError(f"the file {path} cannot be written: {reason}")
    found = _found(path)
    standard = _standard_stream(found)
    streams = standard is not None or not _is_regular(found)
    target = Path(tempfile.gettempdir()) / path.name if streams else Path(os.path.realpath(path))
    # Until it has the permissions of the file that it replaces, the temporary is nobody else's.
    mode = 0o666 if found is None else 0o600
    _remove_leftovers(target)
    with _named_errors(path, target), _temporary(target, path.suffix, mode) as temporary:
        yield temporary
        if streams:
            _send(temporary, path, standard)
        else:
            if found is not None:
                _take_over_permissions(temporary, found)
            temporary.replace(target)


def obstacle(path: Path, *, seeks: bool = False) -> str | None:
    """Return why a file cannot be written and what to do about it; None if nothing is in the way.

    Who `seeks` in the file cannot have a stream.
    """
    try:
        found = _found(path)
    except OSError as error:
        reason = "its symbolic links form a loop" if error.errno == errno.ELOOP else error.strerror
        return f"{reason}; name another file"
    if _standard_stream(found) is not None and not seeks:
        return None  # whatever it is, such as a socket
    if found is not None and not _is_regular(found):
        is_stream = stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)
        return None if is_stream and not seeks else f"it is {_kind(found)}; name a file"
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        return f"the folder {target.parent} does not exist; make it or name another"
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return f"the folder {target.parent} is not writable; name another"
    if found is not None and not os.access(path, os.W_OK):
        return "it is write-protected; name another file"
    return None


def _found(path: Path) -> os.stat_result | None:
    """Return what the path leads to, if there is anything."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _is_regular(found: os.stat_result | None) -> bool:
    """Whether it is a regular file, or will be one."""
    return found is None or stat.S_ISREG(found.st_mode)


def _kind(found: os.stat_result) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(found.st_mode), "a device")


def _standard_stream(found: os.stat_result | None) -> TextIO | None:
    """Return this process's own output if that is what was found, be it a regular file.

    Replaced, it would lose all that is printed later: ``--export /dev/stdout > rows.csv``.
    """
    if found is None:
        return None
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):  # closed, or without a descriptor
            if stream is not None and os.path.samestat(os.fstat(stream.fileno()), found):
                return stream
    return None


def _send(content: Path, path: Path, standard: TextIO | None) -> None:
    """Copy a file's content into a stream."""
    if standard is None:
        descriptor = _opened(path)
    else:
        standard.flush()
        descriptor = os.dup(standard.fileno())
    try:
        with os.fdopen(descriptor, "wb") as sink, content.open("rb") as source:
            shutil.copyfileobj(source, sink)
    except BrokenPipeError:
        if standard is not None:
            raise  # as when printing
        message = "its reader left before the end; read all of it, or name a file"
        raise InputError(f"the file {path} cannot be written: {message}") from None


def _opened(path: Path) -> int:
    """Open a stream for writing, without O_CREAT: if it is gone, that is an error.

    A FIFO's reader is waited for in short naps. A Ctrl-C that comes right before an open that blocks
    would be heard only when that is over.
    """
    if not path.is_fifo():
        return os.open(path, os.O_WRONLY)
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # which says that there is no reader
                raise
            time.sleep(_NAP)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _take_over_permissions(temporary: Path, found: os.stat_result) -> None:
    if sys.platform != "win32":
        for owner, group in ((found.st_uid, -1), (-1, found.st_gid)):
            with suppress(OSError):  # only root may give files away
                os.chown(temporary, owner, group)
    temporary.chmod(stat.S_IMODE(found.st_mode))


@contextmanager
def _named_errors(path: Path, target: Path) -> Iterator[None]:
    """Have the system's errors name the file that the user knows, not a temporary or nothing."""
    try:
        yield
    except OSError as error:
        named = None if error.filename is None else Path(str(error.filename)).name
        if error.errno is not None and (named is None or named.startswith(_beginning(target))):
            error.filename = str(path)
        raise


@contextmanager
def _temporary(target: Path, suffix: str, mode: int) -> Iterator[Path]:
    """Yield a new file beside the target, locked so that others see that its writer is alive."""
    temporary, descriptor = _locked(target, suffix, mode)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def _locked(target: Path, suffix: str, mode: int) -> tuple[Path, int | None]:
    while True:
        name = f"{_beginning(target)}{_host()}-{secrets.token_hex(4)}{suffix}"
        temporary = target.with_name(name)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        if sys.platform == "win32":  # where an open file cannot be renamed
            os.close(descriptor)
            return temporary, None
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if temporary.exists():
            return temporary, descriptor
        os.close(descriptor)  # between the last two calls another process took it for a leftover


def _remove_leftovers(target: Path) -> None:
    """Remove what processes that were killed left of the same target.

    The lock tells: the system lets go of it however a process ends. A process number would not do, as
    it is used again and means nothing outside its own container or machine. Files of other machines
    must be a day old as well, as on some shared file systems locks do not reach beyond a machine.
    """
    if sys.platform == "win32":
        return
    pattern = re.compile(re.escape(_beginning(target)) + r"([0-9a-f]{8})-[0-9a-f]{8}(\.[^.]*)?")
    with suppress(OSError):
        for entry in list(os.scandir(target.parent)):
            found = pattern.fullmatch(entry.name)
            if found:
                _remove_unless_locked(Path(entry.path), is_ours=found[1] == _host())


def _remove_unless_locked(path: Path, *, is_ours: bool) -> None:
    if sys.platform == "win32":
        return
    with suppress(OSError):  # locked, gone, or another user's: then it is not ours to remove
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and (is_ours or time.time() - found.st_mtime > _DAY):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(descriptor)


def _beginning(target: Path) -> str:
    """Return how the names of a file's temporaries begin."""
    return f".{target.name}.pesky-"


def _host() -> str:
    """Return a short mark of this machine."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
