"""Training on a data set: epochs, callbacks, checkpoints, and a clean end whatever happens."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pesky import rule
from pesky.errors import InputError, check_count
from pesky.interrupts import stopped_by_ctrl_c
from pesky.online.kernels import SINCE_CALL, SINCE_EPOCH
from pesky.online.learner import Learner, samples_of
from pesky.online.methods import Method
from pesky.online.network import Network
from pesky.online.passes import Integers, Samples

__all__ = ["FitResult", "Moment", "fit"]

_SECONDS_BETWEEN_SAVES = 60.0
_MOST_BETWEEN_LOOKS = 20_000  # samples, so that Ctrl-C and the progress bar do not wait long


@dataclass(frozen=True)
class Moment:
    """Where a run is, for callbacks."""

    learner: Learner
    step: int  # samples seen
    epoch: float  # passes over the data, so far
    loss: float  # mean over the samples since the last call
    end_of_epoch: bool


@dataclass(frozen=True)
class FitResult:
    """How a run ended. The network holds the parameters, whatever the status."""

    status: Literal["finished", "diverged", "interrupted", "stopped"]
    steps: int
    diverged_at: int | None
    rejected: int  # samples not learnt from: not finite, or met after a step that had to be undone
    loss: tuple[float, ...]  # mean training loss of each epoch, as it was met
    seconds: float
    learner: Learner

    @property
    def trace(self) -> dict[str, NDArray[Any]]:
        """Rates, memory and loss at log-spaced steps, as arrays to plot."""
        return self.learner.trace.arrays()


Callback = Callable[[Moment], bool | None]


def fit(
    network: Network,
    method: Method,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    epochs: int = 1,
    seed: int = 0,
    callback: Callback | None = None,
    every: int | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    stop: threading.Event | None = None,
) -> FitResult:
    """Train `network` in place, one sample at a time, a fresh permutation of the data every epoch.

    Ctrl-C stops between two samples; the result tells what was done.

    Args:
        network: what is trained.
        method: how its rates are chosen.
        X: inputs, one row a sample.
        y: labels or targets; without them the targets are the inputs (an autoencoder).
        epochs: passes over the data.
        seed: of the order of the samples, which is then the same for every method.
        callback: called after every epoch, and after every `every` samples if that is given; something
            true from it stops the run.
        every: see `callback`.
        progress: whether a bar is shown.
        checkpoint: a path. The run is saved there as it goes, and one that finds its own file goes on
            from it, bit for bit.
        stop: another thread sets it to stop the run.

    Example:

    >>> from pesky.online import VSGD, Network, fit
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> result = fit(Network([1, 2]), VSGD(), X, y, epochs=3)
    >>> result.status, result.steps
    ('finished', 12)
    """
    if not isinstance(network, Network):
        raise InputError(f"network must be a Network; got {network!r}")
    epochs, seed = check_count("epochs", epochs), check_count("seed", seed, least=0)
    if every is not None:
        every = check_count("every", every)
    inputs = network.check_inputs(X)
    targets = network.check_targets(inputs, y)
    if len(inputs) == 0:
        raise InputError("X has no samples; give at least one")
    run = _Run(network, method, samples_of(inputs, targets), epochs, seed)
    if checkpoint is not None:
        run.resume_from(Path(checkpoint))
    with _progress_bar(progress, run), stopped_by_ctrl_c(stop) as interrupted:
        return run.go(callback, every, interrupted)


class _Run:
    def __init__(
        self, network: Network, method: Method, samples: Samples, epochs: int, seed: int
    ) -> None:
        self.learner = Learner(network, method)
        self.samples = samples
        self.size = len(samples.inputs)
        self.epochs = epochs
        self.seed = seed
        self.losses: list[float] = []  # of finished epochs
        self.checkpoint: Path | None = None
        self.identity: dict[str, Any] = {}
        self.on_progress: Callable[[int], None] = lambda step: None

    def resume_from(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise InputError(f"the folder of checkpoint {path} does not exist; make it or name another")
        self.checkpoint = path
        self.identity = {"seed": self.seed, "data": _digest(self.samples)}
        if not path.exists():
            return
        saved, extra = Learner.load_with_extra(path)
        network, method = self.learner.network, self.learner.method
        same = (saved.network.settings(), saved.method) == (network.settings(), method)
        if not same or {name: extra.get(name) for name in self.identity} != self.identity:
            raise InputError(
                f"checkpoint {path} is of another run (network, method, seed or data differ); "
                "name another file or remove it"
            )
        network.set_parameters(saved.network.theta)
        saved.network = network
        self.learner = saved
        self.losses = extra["losses"]

    def save(self) -> None:
        if self.checkpoint is not None:
            self.learner.save(self.checkpoint, **self.identity, losses=self.losses)

    def go(
        self, callback: Callback | None, every: int | None, interrupted: threading.Event
    ) -> FitResult:
        started = saved = time.perf_counter()
        status: Literal["finished", "diverged", "interrupted", "stopped"] = "finished"
        called_at = self.learner.steps
        self.learner.take_loss(SINCE_CALL)  # of a run that is resumed: its callbacks were other ones
        if not self.learner.started:
            self.learner.start(self.samples, self._initial())
        order, order_epoch = np.zeros(0, np.int64), -1
        while self.learner.steps < self.epochs * self.size:
            if self.learner.diverged_at is not None:
                status = "diverged"
                break
            if interrupted.is_set():
                status = "interrupted"
                break
            epoch, position = divmod(self.learner.steps, self.size)
            if epoch != order_epoch:
                order, order_epoch = self._order(epoch), epoch
            stop = min(self.size, position + _MOST_BETWEEN_LOOKS)
            if every is not None:
                stop = min(stop, position + every - self.learner.steps % every)
            self.learner.advance(self.samples, order[position:stop])
            end_of_epoch = self.learner.steps % self.size == 0
            if end_of_epoch:
                self.losses.append(self.learner.take_loss(SINCE_EPOCH) / self.size)
            if end_of_epoch or time.perf_counter() - saved > _SECONDS_BETWEEN_SAVES:
                self.save()
                saved = time.perf_counter()
            self.on_progress(self.learner.steps)
            due = every is not None and self.learner.steps % every == 0
            if callback is not None and (end_of_epoch or due) and self.learner.diverged_at is None:
                passes = self.learner.steps / self.size
                loss = self.learner.take_loss(SINCE_CALL) / (self.learner.steps - called_at)
                called_at = self.learner.steps
                moment = Moment(self.learner, self.learner.steps, passes, loss, end_of_epoch)
                if callback(moment):
                    status = "stopped"
                    break
        if self.learner.diverged_at is not None:
            status = "diverged"
        self.save()
        learner = self.learner
        return FitResult(
            status=status,
            steps=learner.steps,
            diverged_at=learner.diverged_at,
            rejected=learner.rejected,
            loss=tuple(self.losses),
            seconds=time.perf_counter() - started,
            learner=learner,
        )

    def _initial(self) -> Integers:
        wanted = getattr(self.learner.method, "init_samples", None)
        count = min(self.size, wanted or rule.initial_samples(self.size))
        rng = np.random.default_rng([self.seed, 2])
        return rng.choice(self.size, size=count, replace=False)

    def _order(self, epoch: int) -> Integers:
        return np.random.default_rng([self.seed, 1, epoch]).permutation(self.size)


def _digest(samples: Samples) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in samples:
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@contextmanager
def _progress_bar(wanted: bool, run: _Run) -> Iterator[None]:
    if not wanted:
        yield
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        raise InputError(
            "progress=True needs rich; run: pip install 'pesky[lab]', or leave progress out"
        ) from None
    with Progress(console=Console(stderr=True), transient=True) as bar:
        total = run.epochs * run.size
        task = bar.add_task(run.learner.method.name, total=total, completed=run.learner.steps)
        run.on_progress = lambda step: bar.update(task, completed=step)
        yield
