"""The paper's long run: 100 epochs of vSGD-l on MNIST with 800 hidden units."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pesky.errors import InputError, check_count
from pesky.files import atomic_path
from pesky.lab.benchmarks import Benchmark, Task
from pesky.lab.figures.picture import GREEN, ORANGE, Picture, legend_above, new_figure, tidy
from pesky.lab.runs.training import Training, error_of
from pesky.online import NUMERICS_VERSION, VSGD, Learner, Moment, Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MOST_HIDDEN", "PAPER_TEST", "make", "working_files"]

PAPER_TEST = 1.87  # percent, after 100 epochs
_PAPER_EPOCHS = 100
MOST_HIDDEN = 1_000_000
_STYLES: dict[str, dict[str, Any]] = {
    "test": {"color": ORANGE, "linewidth": 2.2},
    "train": {"color": GREEN, "linewidth": 2.2, "linestyle": (0, (5, 2))},
}


def make(
    work: Path,
    *,
    epochs: int = 100,
    hidden: int = 800,
    seed: int = 0,
    folder: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Picture:
    """Train, noting both errors after every epoch, and draw them.

    The run notes itself in the folder `work` (`working_files` names the files), so that after a kill the
    same call goes on and gives the same numbers, and of a run that is over only the picture is drawn
    again. `folder` is where the data is looked for.
    """
    epochs, seed = check_count("epochs", epochs), check_count("seed", seed, least=0)
    hidden = check_count("hidden", hidden, most=MOST_HIDDEN)
    benchmark = Benchmark("M1", "mnist", (784, hidden, 10))
    checkpoint, noted = working_files(work, epochs=epochs, hidden=hidden, seed=seed)
    history = _History(noted, lambda text: say(f"{text} of {epochs}"))
    if not history.is_over():
        _train(benchmark, benchmark.task(folder), history, checkpoint, epochs=epochs, seed=seed)
    checkpoint.unlink(missing_ok=True)
    numbers: dict[str, Any] = {
        "layers": list(benchmark.layers),
        "epochs": epochs,
        "seed": seed,
        "status": history.status,
        "train": history.train,
        "test": history.test,
        "paper_test_after_100_epochs": PAPER_TEST,
    }
    return _draw(numbers)


def _train(
    benchmark: Benchmark, task: Task, history: "_History", checkpoint: Path, *, epochs: int, seed: int
) -> None:
    history.catch_up(checkpoint, task)
    training = Training(benchmark, task, seed)

    def after_epoch(moment: Moment) -> None:
        history.add(training.network, task)

    result = training.run(VSGD(), epochs=epochs, watch=after_epoch, checkpoint=checkpoint)
    history.end(result.status)


def working_files(work: Path, *, epochs: int, hidden: int, seed: int) -> tuple[Path, Path]:
    """Return the checkpoint of an unfinished run and the file with the errors of a run.

    Their names hold the settings: a quick run does not disturb a long one in the same folder.
    """
    stem = f"epochs-{hidden}-hidden-{epochs}-epochs-seed-{seed}"
    return work / f"{stem}.checkpoint.npz", work / f"{stem}.errors.json"


@dataclass
class _History:
    """Errors after each epoch so far, in percent; on disk as soon as they are known."""

    path: Path
    say: Callable[[str], None]
    train: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    status: str | None = None  # of a run that is over

    def is_over(self) -> bool:
        """Whether the file is of a run that came to its end; then its errors are read."""
        try:
            self._read()
        except InputError:  # if there is a checkpoint beside it, it is looked at again
            self.status = None
        if self.status is None:
            self.train, self.test = [], []
        return self.status is not None

    def catch_up(self, checkpoint: Path, task: Task) -> None:
        """Read what is known of the epochs that the checkpoint has behind it."""
        if not checkpoint.exists():
            return
        learner = Learner.load(checkpoint)
        done, beyond = divmod(learner.steps, len(task.train_inputs))
        self._read()
        # More than the checkpoint has is possible after a power cut; the run will find it again.
        del self.train[done:], self.test[done:]
        if len(self.train) == done:
            return
        # The checkpoint of an epoch is written just before its errors are: one may be missing.
        if beyond == 0 and len(self.train) == done - 1:
            self.add(learner.network, task)
            return
        raise InputError(
            f"{self.path} lacks epochs that {checkpoint.name} has behind it; remove both to start anew"
        )

    def add(self, network: Network, task: Task) -> None:
        """Measure an epoch's end."""
        self.train.append(error_of(network, task, "train"))
        self.test.append(error_of(network, task, "test"))
        self._write()
        self.say(
            f"train {self.train[-1]:.2f} %, test {self.test[-1]:.2f} % after epoch {len(self.test)}"
        )

    def end(self, status: str) -> None:
        """Note that there is no more to come."""
        self.status = status
        self._write()

    def _write(self) -> None:
        content = {
            "numerics": NUMERICS_VERSION,
            "status": self.status,
            "train": self.train,
            "test": self.test,
        }
        with atomic_path(self.path) as temporary:
            temporary.write_text(json.dumps(content), encoding="utf-8")

    def _read(self) -> None:
        if not self.path.exists():
            return
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            self.train, self.test = list(map(float, content["train"])), list(map(float, content["test"]))
            self.status = content.get("status")
            numerics = content["numerics"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self.path} is damaged; remove it and the checkpoint beside it") from None
        if numerics != NUMERICS_VERSION:
            raise InputError(
                f"{self.path} is of another version of pesky's arithmetic; "
                "remove it and the checkpoint beside it, or name another folder"
            )


def _draw(numbers: dict[str, Any]) -> Picture:
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    figure, axes = new_figure(7, 5)
    for part in ("test", "train"):
        errors = numbers[part]
        time = range(1, len(errors) + 1)
        marker = "o" if len(errors) <= 10 else None  # few points would be lost in the line
        axes.semilogx(time, errors, label=f"{part} error", marker=marker, clip_on=False, **_STYLES[part])
        if errors:
            _name_last(axes, len(errors), errors[-1], _STYLES[part]["color"])
    label = f"paper: {PAPER_TEST} % test after {_PAPER_EPOCHS} epochs"
    axes.axhline(PAPER_TEST, color="0.35", linewidth=0.9, linestyle=":", zorder=1, label=label)
    axes.set_xlim(1, max(numbers["epochs"], 2))  # one epoch alone would leave the axis no width
    axes.set_ylim(bottom=0)
    axes.set_xticks(_ticks(numbers["epochs"]))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    hidden = numbers["layers"][1]
    tidy(axes, x=f"epoch of vSGD-l on [784, {hidden}, 10]", y="error, %")
    legend_above(figure, axes, columns=3)
    return Picture("epochs", figure, numbers)


def _ticks(epochs: int) -> list[int]:
    if epochs <= 10:
        return list(range(1, max(epochs, 2) + 1))
    steps = [factor * 10**power for power in range(len(str(epochs))) for factor in (1, 2, 5)]
    return [step for step in steps if step <= epochs]


def _name_last(axes: "Axes", epoch: int, error: float, color: str) -> None:
    axes.annotate(
        f"{error:.2f}",
        (epoch, error),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=color,
        annotation_clip=False,
    )
