"""The runs of a race on a Dask cluster: what a worker is sent, and what is done when one dies.

Claims and the store stay with the process that races; a worker gets the contest once, a key and a limit
a run, and sends back a row. Whatever dies, a row is stored once or the run is done again.
"""

import asyncio
import importlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

import pesky
from pesky.errors import InputError
from pesky.lab.race.contest import ROBUST_PROTOCOL, Contest, ContestRun
from pesky.lab.race.rows import Row, RunKey
from pesky.lab.runs.completing import Interrupted
from pesky.online import NUMERICS_VERSION

__all__ = ["Cluster", "connected"]

_PATIENCE = 5  # seconds to wait for the scheduler, and for a first worker
_PLACES = 256  # runs handed to the scheduler at a time: more than it has threads, for it may grow
_PAUSE = 0.2  # seconds between looks at a run
_ATTEMPTS = 5  # at a run whose workers die; the scheduler makes several of each

Version = tuple[str, int, str]


@contextmanager
def connected(address: str) -> Iterator["Cluster"]:
    """Connect to a Dask scheduler, or say in one line why that cannot be."""
    distributed = _imported()
    for name in ("distributed", "distributed.client"):  # what it says of losses is told here, in a line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _check_scheduler(distributed, address)
    with distributed.Client(address, timeout=_PATIENCE, set_as_default=False) as client:
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError:
            raise InputError(
                f"--cluster {address} has no workers; start some: dask worker {address}"
            ) from None
        yield Cluster(client, address)


def _check_scheduler(distributed: Any, address: str) -> None:
    """Ask who is there: a client would wait for one that never answers, and leave a thread behind."""

    async def kind() -> str:
        arguments = distributed.Security().get_connection_args("client")
        async with distributed.rpc(address, connection_args=arguments) as place:
            return str((await place.identity())["type"])

    try:
        found = asyncio.run(asyncio.wait_for(kind(), _PATIENCE))
    except (OSError, ValueError, ImportError) as error:
        found = _line(error) or f"no answer in {_PATIENCE} s"
    if found != "Scheduler":
        raise InputError(
            f"--cluster {address}: no Dask scheduler is there ({found}); give the address that "
            "dask scheduler prints, such as tcp://host:8786"
        )


def _imported() -> Any:
    try:
        return importlib.import_module("distributed")
    except ModuleNotFoundError:
        raise InputError("--cluster needs Dask; run: pip install 'pesky[cluster]'") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _version() -> Version:
    """Return what must be the same everywhere for a row to be the same."""
    return pesky.__version__, NUMERICS_VERSION, ROBUST_PROTOCOL


def _run(contest: Contest, key: RunKey, limit: float, version: Version) -> Row:
    """Do a run on a worker."""
    if version != _version():  # of one that has come since the others were asked
        raise InputError(_other_version("a worker", _version(), version))
    return contest.run(key, limit, threading.Event())


def _other_version(who: str, theirs: Version, ours: Version) -> str:
    names = ("pesky", "arithmetic", "protocol")
    differences = (
        f"{name} {their!r} where this is {our!r}"
        for name, their, our in zip(names, theirs, ours, strict=True)
        if their != our
    )
    return f"--cluster: {who} has {', '.join(differences)}; install the same version there"


class Cluster:
    """The workers of a Dask cluster, as a race uses them."""

    places = _PLACES

    def __init__(self, client: Any, address: str) -> None:
        """Take a client that is connected; refuse workers with another version of pesky."""
        self._client = client
        self._address = address
        self._sending = threading.Lock()
        self._contest: Contest | None = None
        self._sent: Any = None  # the contest, as a future that all runs depend on
        for worker, found in client.run(_version, on_error="return").items():
            if isinstance(found, Exception):
                raise InputError(
                    f"--cluster {address}: the worker {worker} cannot run pesky ({_line(found)}); "
                    f"install there what runs here, pesky {pesky.__version__}"
                )
            if found != _version():
                raise InputError(_other_version(f"the worker {worker}", found, _version()))

    def run(self, job: ContestRun, stop: threading.Event) -> Row:
        """Have a run done by some worker; by another if that one dies."""
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        for _ in range(_ATTEMPTS):
            try:
                return self._attempt(job, stop)
            except (CancelledError, KilledWorker):
                self._check_connection()
            except CommClosedError:  # the scheduler's end closed before the client noticed
                raise self._gone() from None
        raise InputError(
            f"--cluster {self._address}: workers keep dying at {job.key.method} {job.key.settings} on "
            f"{job.key.benchmark}; see their logs, and give them more memory"
        )

    def _attempt(self, job: ContestRun, stop: threading.Event) -> Row:
        sent = self._sent_once(job.contest, stop)
        future = self._client.submit(_run, sent, job.key, job.limit, _version(), pure=False)
        try:
            while not stop.wait(_PAUSE):
                self._check_connection()
                if future.done():
                    with suppress(TimeoutError):  # its worker has died with it, and it is done again
                        row: Row = future.result(timeout=_PATIENCE)
                        return row
        finally:
            future.release()  # after Ctrl-C: what has not begun never does
        raise Interrupted

    def _sent_once(self, contest: Contest, stop: threading.Event) -> Any:
        """Return the contest as it lies on the cluster; it is sent again if its last holder died."""
        with self._sending:
            while self._contest is not contest or self._sent.status != "finished":
                self._check_connection()
                if stop.is_set():
                    raise Interrupted
                with suppress(OSError):  # no worker is there, for the moment
                    self._sent = self._client.scatter(contest, hash=False, timeout=_PATIENCE)
                    self._contest = contest
            return self._sent

    def _check_connection(self) -> None:
        if self._client.status != "running":
            raise self._gone()

    def _gone(self) -> InputError:
        return InputError(
            f"--cluster {self._address} is gone; once it is back, the same command goes on from here"
        )
