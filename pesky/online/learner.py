"""One network learning by one method, sample after sample, for as long as samples come."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pesky.errors import InputError
from pesky.online import methods
from pesky.online.archive import name_damage, read_arrays, write_arrays
from pesky.online.kernels import RUNNING, SINCE_NOTE, look, train
from pesky.online.methods import Beginning, Method
from pesky.online.network import Network
from pesky.online.older import without_curvatures
from pesky.online.passes import Floats, Integers, Samples, Work
from pesky.online.trace import Trace, next_traced_step

__all__ = ["STREAM_INITIAL_SAMPLES", "Learner", "samples_of"]

STREAM_INITIAL_SAMPLES = 10
EXPLODED = 1e6  # a running loss so many times the first one will not come back
_NO_LIMIT = 1e300  # where no initial sample was usable: only what is not finite counts as exploded
_FORMAT = 3  # of checkpoint files; raised when their content changes
_WITH_PREVIOUS = 2  # the same, and the robust form's iterates before the last step, which nobody reads
_UPDATES_AT_ONCE = 200_000_000  # parameters updated in one call, a fraction of a second


class Learner:
    """Learns from a stream: data arrives in pieces of any size, and the state lives on.

    The first samples (10, or the method's own `init_samples`) are kept until they are complete: the
    adaptive methods average them before the first step, and their loss is what "exploding" is measured
    against. Then they are learnt from like all others. How the stream is cut into pieces makes no
    difference.

    >>> import numpy as np
    >>> from pesky.online import VSGD, Learner, Network
    >>> rng = np.random.default_rng(0)
    >>> learner = Learner(Network([2, 2]), VSGD())
    >>> for _ in range(100):
    ...     X = rng.normal(size=(20, 2))
    ...     _ = learner.learn(X, (X[:, 0] > X[:, 1]).astype(int))
    >>> learner.steps, learner.network.predict([[1.0, -1.0], [-1.0, 1.0]]).tolist()
    (2000, [1, 0])
    """

    def __init__(self, network: Network, method: Method) -> None:
        """Prepare; nothing is learnt yet."""
        if not isinstance(network, Network):
            raise InputError(f"network must be a Network; got {network!r}")
        if not isinstance(method, Method):
            raise InputError(f"method must be one of pesky.online's methods; got {method!r}")
        self.network = network
        self.method = method
        self.beginning = Beginning(network.parameters, network.block_sizes)
        self.state = method.begin(self.beginning)
        self.work = Work.of_size(sum(network.sizes))
        self.trace = Trace()
        self.steps = 0  # samples seen
        self.rejected = 0  # of them: not finite, or met after a step that had to be undone
        self.diverged_at: int | None = None  # the step that stopped it
        self._started = False
        self._waiting: list[tuple[Floats, NDArray[Any]]] = []
        self._losses = np.zeros(4)  # a running mean, and sums since the last note, epoch and call
        self._limit = _NO_LIMIT
        self._noted_at = 0  # the step of the last note

    def learn(self, X: ArrayLike, y: ArrayLike | None = None) -> "Learner":
        """Learn from a piece of the stream, in order; return the learner itself."""
        inputs = self.network.check_inputs(X)
        targets = self.network.check_targets(inputs, y)
        if not self._started:
            self._waiting.append((inputs.copy(), targets.copy()))
            needed = getattr(self.method, "init_samples", None) or STREAM_INITIAL_SAMPLES
            if sum(len(piece) for piece, _ in self._waiting) < needed:
                return self
            inputs = np.concatenate([piece for piece, _ in self._waiting])
            targets = np.concatenate([piece for _, piece in self._waiting])
            self._waiting = []
            self.start(samples_of(inputs, targets), np.arange(needed))
        self.advance(samples_of(inputs, targets), np.arange(len(inputs)))
        return self

    def start(self, samples: Samples, initial: Integers) -> None:
        """Average the `initial` samples without moving."""
        factor = np.float32(self.method.initial_factor(self.beginning))
        shape, theta, curved = self.network.shape, self.network.theta, self.method.bbprop_every > 0
        with _say_if_compiling():
            look(shape, theta, self.work, self.state, samples, initial[:0], curved, factor)
            self.train(samples, initial[:0])
        total, count = look(shape, theta, self.work, self.state, samples, initial, curved, factor)
        self.method.end_look(self.state, self.beginning, count)
        if count > 0:
            self._losses[RUNNING] = total / count
            self._limit = EXPLODED * max(total / count, 1.0)
        self._started = True

    @property
    def started(self) -> bool:
        """Whether the initial samples have been averaged."""
        return self._started

    def take_loss(self, which: int) -> float:
        """Return one of the kernel's sums of the loss and start it anew."""
        total = float(self._losses[which])
        self._losses[which] = 0.0
        return total

    def advance(self, samples: Samples, order: Integers) -> None:
        """Learn from the samples in `order`; once the loss has diverged, nothing is learnt any more."""
        done = 0
        while done < len(order) and self.diverged_at is None:
            note_at = next_traced_step(self.steps)
            size = min(len(order) - done, note_at - self.steps, self._chunk())
            done += self._advance_chunk(samples, order[done : done + size])
            if self.steps == note_at or self.diverged_at is not None:
                self._note()

    def _chunk(self) -> int:
        return max(1, min(5000, _UPDATES_AT_ONCE // self.network.parameters))

    def _advance_chunk(self, samples: Samples, order: Integers) -> int:
        before = self.network.theta.copy()
        seen, rejected, diverged = self.train(samples, order)
        self.steps += seen
        self.rejected += rejected
        if not np.all(np.isfinite(self.network.theta)):
            self.network.theta[:] = before
            diverged = True
        if diverged:
            self.diverged_at = self.steps
        return seen

    def train(self, samples: Samples, order: Integers) -> tuple[int, int, bool]:
        """Run the kernel alone: no counts, no trace. See `pesky.online.kernels.train`."""
        theta = self.network.theta
        self.method.enter(self.state, theta)
        try:
            return train(
                self.network.shape,
                theta,
                self.work,
                self.state,
                samples,
                order,
                self.steps,
                self.method.bbprop_every,
                self._losses,
                self._limit,
            )
        finally:
            self.method.leave(self.state, theta)

    def _note(self) -> None:
        with np.errstate(over="ignore"):  # where the rule squares a large curvature
            rates, memory = self.method.rates(self.state), self.method.memory(self.state)
        mean = self.take_loss(SINCE_NOTE) / (self.steps - self._noted_at)
        self.trace.add(self.steps, rates, memory, mean)
        self._noted_at = self.steps

    @property
    def bytes_used(self) -> int:
        """Memory held: parameters, statistics and the units' scratch space."""
        arrays = (*self.work, *self.state, self.network.theta)
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))

    def save(self, path: str | Path, **extra: Any) -> None:
        """Write everything to one ``.npz`` file, from which `load` goes on bit for bit."""
        counters = {
            "format": _FORMAT,
            "network": self.network.settings(),
            "method": {"class": type(self.method).__name__, **asdict(self.method)},  # type: ignore[call-overload]
            "steps": self.steps,
            "rejected": self.rejected,
            "diverged_at": self.diverged_at,
            "started": self._started,
            "losses": self._losses.tolist(),
            "limit": self._limit,
            "noted_at": self._noted_at,
            "extra": extra,
        }
        arrays = {"learner": np.array(json.dumps(counters)), "theta": self.network.theta}
        arrays |= {f"state.{name}": array for name, array in _arrays_of(self.state).items()}
        arrays |= {f"trace.{name}": array for name, array in self.trace.arrays().items()}
        if self._waiting:
            arrays["waiting.inputs"] = np.concatenate([piece for piece, _ in self._waiting])
            arrays["waiting.targets"] = np.concatenate([piece for _, piece in self._waiting])
        write_arrays(Path(path), arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Learner":
        """Read what `save` wrote."""
        return cls.load_with_extra(path)[0]

    @classmethod
    def load_with_extra(cls, path: str | Path) -> tuple["Learner", dict[str, Any]]:
        """Read what `save` wrote, and what was given to it as `extra`."""
        arrays = read_arrays(Path(path), ("learner", "theta"))
        with name_damage(Path(path)):
            counters = json.loads(str(arrays["learner"]))
            if counters["format"] == 1:
                counters, arrays = without_curvatures(counters, arrays)
            elif counters["format"] not in (_WITH_PREVIOUS, _FORMAT):
                raise InputError(
                    f"{path} has format {counters['format']}, this version of pesky reads none above "
                    f"{_FORMAT}; load it with the version that wrote it"
                )
            return cls._rebuilt(counters, arrays), counters["extra"]

    @classmethod
    def _rebuilt(cls, counters: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> "Learner":
        network = Network(**counters["network"])
        network.set_parameters(arrays["theta"])
        settings = counters["method"]
        learner = cls(network, getattr(methods, settings.pop("class"))(**settings))
        for name, array in _arrays_of(learner.state).items():
            saved = arrays[f"state.{name}"]
            if saved.shape != array.shape:
                raise ValueError(f"state.{name} has shape {saved.shape}, not {array.shape}")
            array[:] = saved
        names = ("step", "rate", "memory", "loss")
        learner.trace = Trace.from_arrays({name: arrays[f"trace.{name}"] for name in names})
        learner.steps, learner.rejected = counters["steps"], counters["rejected"]
        learner.diverged_at = counters["diverged_at"]
        learner._started = counters["started"]
        learner._losses[:] = counters["losses"]
        learner._limit = counters["limit"]
        learner._noted_at = counters["noted_at"]
        if "waiting.inputs" in arrays:
            learner._waiting = [(arrays["waiting.inputs"], arrays["waiting.targets"])]
        return learner


def samples_of(inputs: Floats, targets: NDArray[Any]) -> Samples:
    """Put checked inputs and targets into the form that kernels take."""
    if targets.dtype == np.int64:
        return Samples(inputs, targets, np.zeros((1, 1), np.float32))
    return Samples(inputs, np.zeros(0, np.int64), targets)


def _arrays_of(state: Any) -> dict[str, NDArray[Any]]:
    return {name: value for name, value in state._asdict().items() if isinstance(value, np.ndarray)}


_told_of_compiling = threading.Event()


def _tell_of_compiling() -> None:
    if not _told_of_compiling.is_set():
        _told_of_compiling.set()
        message = "pesky: compiling the engine for this machine, once; some seconds a method"
        print(message, file=sys.stderr, flush=True)


@contextmanager
def _say_if_compiling() -> Iterator[None]:
    """Tell what the pause is, if there is one."""
    timer = threading.Timer(1.0, _tell_of_compiling)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
