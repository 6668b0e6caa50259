"""The paper's critical C: how slow a start vSGD-l needs, against the number of parameters.

A run is *unstable* if within its horizon it diverges (the engine stops it: parameters that are not
finite, or a running loss a million times the first), or if the mean loss over a window of 100 samples
exceeds 10 times the loss of the untrained network. A start that is slow enough makes the loss fall from
the first window on, one that is not makes it rise tens to thousands of times, so ten separates the two.

The *horizon* is 1,000 samples, or 2 sqrt(d) if that is more. C divides the first rates by C^2, which
wears off like (t / C)^2; d parameters that overshoot together are too fast once (t / C)^2 d is about 1,
that is after about C / sqrt(d) samples. So for any C up to d, what a too short slow start does shows
within the horizon; a loss that rises long after it is not the start's fault.

The *critical* C is the largest on a grid from 1 to 10 d for which at least a tenth of the runs are
unstable.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from pesky.errors import InputError, check_count
from pesky.files import atomic_path
from pesky.lab.benchmarks import BENCHMARKS, L2, Benchmark, Task
from pesky.lab.figures.picture import BLUE, GREEN, PLAIN_BOX, Picture, legend_above, new_figure, tidy
from pesky.online import NUMERICS_VERSION, VSGD, Moment, Network, fit
from pesky.rule import slow_start_factor

__all__ = ["Found", "Only", "Setup", "Trial", "grid", "is_unstable", "make", "search", "shown"]

Only = Literal["all", "benchmarks", "xor"]

WINDOW = 100  # samples
EXPLODED = 10.0  # times the loss at first
SHORTEST = 1000  # samples
XOR_INITIAL_SAMPLES = 10
_LOOKED_AT = 1000  # samples, for the loss at first
DEFINITION = (
    f"unstable: within the first max({SHORTEST}, 2 sqrt(d)) samples the run diverges, or its mean loss "
    f"over {WINDOW} samples exceeds {EXPLODED:g} times that of the untrained network"
)
CRITICAL = "critical: the largest C for which at least 10 % of the runs are unstable"

BENCHMARK_NAMES = ("M0", "M1", "M2", "C0", "C1", "CR")
XOR_UNITS = (2, 10, 100, 1000, 10_000, 100_000, 500_000)
QUICK_BENCHMARKS = ("M0", "C0")
QUICK_UNITS = XOR_UNITS[:4]

_XOR_INPUTS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float32)
_XOR_LABELS = np.array([0, 1, 1, 0], np.int64)


@dataclass(frozen=True)
class Setup:
    """A network and what it learns from; without a task, XOR."""

    benchmark: Benchmark
    task: Task | None = None

    @property
    def name(self) -> str:
        """Return how figure and files call it."""
        return self.benchmark.name

    @property
    def parameters(self) -> int:
        """Return d, without making the network."""
        return sum((below + 1) * above for below, above in pairwise(self.benchmark.layers))

    @property
    def horizon(self) -> int:
        """Return the samples after which a run counts as stable: whole windows."""
        return WINDOW * math.ceil(max(SHORTEST, 2 * math.sqrt(self.parameters)) / WINDOW)

    def samples(self, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
        """Return inputs and targets: of XOR as many random draws as the horizon has."""
        if self.task is not None:
            return self.task.train_inputs, self.task.train_targets
        drawn = np.random.default_rng([seed, 3]).integers(len(_XOR_LABELS), size=self.horizon)
        return _XOR_INPUTS[drawn], _XOR_LABELS[drawn]

    def method(self, factor: float) -> VSGD:
        """Return vSGD-l with C = `factor`.

        A thousandth of XOR's four points is one sample, whose squared gradient is all but zero at many
        units and no scale for the other points; so XOR starts from 10, as streams do.
        """
        return VSGD(slow_start=factor, init_samples=None if self.task else XOR_INITIAL_SAMPLES)


@dataclass(frozen=True)
class Trial:
    """What was seen at one C; not all runs are needed to know."""

    factor: float
    unstable: int
    runs: int


@dataclass(frozen=True)
class Found:
    """The end of a search: `factor` is None where no C of the grid is unstable."""

    factor: float | None
    status: Literal["found", "below 1", "not bounded by the grid"]
    trials: tuple[Trial, ...]


def make(
    work: Path,
    *,
    runs: int = 20,
    quick: bool = False,
    only: Only = "all",
    folder: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Picture:
    """Search the critical C of every setup and draw it against d.

    Every run's outcome is noted in ``critical-runs.json`` in the folder `work` as it comes, so that
    after a kill the same call goes on. `folder` is where the data is looked for.
    """
    check_count("runs", runs)
    per_decade = 1 if quick else 2
    setups = _setups(quick, only, folder)
    outcomes = _Outcomes(work / "critical-runs.json")
    rows = []
    for setup in sorted(setups, key=lambda setup: setup.parameters):  # the cheap ones first
        found = _critical(setup, outcomes, runs, per_decade, say)
        rows.append(_row(setup, found))
        say(f"{setup.name}: critical C {shown(rows[-1])}")
    numbers: dict[str, Any] = {
        "definition": DEFINITION,
        "critical": CRITICAL,
        "l2": L2,
        "runs": runs,
        "factor_between_grid_points": 10 ** (1 / per_decade),
        "setups": rows,
    }
    return _draw(numbers)


def search(unstable: Callable[[float, int], bool], factors: Sequence[float], runs: int) -> Found:
    """Return the largest of `factors` at which at least a tenth of `runs` are unstable.

    `unstable` tells it of a factor and a seed. From the largest factor down; a factor is left as soon
    as the runs still to come can change nothing.
    """
    needed = -(-runs // 10)
    trials: list[Trial] = []
    for factor in sorted(factors, reverse=True):
        trials.append(_trial(unstable, factor, runs, needed))
        if trials[-1].unstable >= needed:
            return Found(factor, "not bounded by the grid" if len(trials) == 1 else "found", (*trials,))
    return Found(None, "below 1", (*trials,))


def grid(parameters: int, per_decade: int) -> list[float]:
    """Return 1, ..., at most 10 d; so many a decade."""
    last = math.floor(per_decade * math.log10(10 * parameters))
    return [10.0 ** (power / per_decade) for power in range(last + 1)]


def is_unstable(setup: Setup, factor: float, seed: int) -> bool:
    """Run vSGD-l with C = `factor` until its horizon, or until it is known to be unstable."""
    network = setup.benchmark.network(seed)
    inputs, targets = setup.samples(seed)
    limit = EXPLODED * _mean_loss(network, inputs[:_LOOKED_AT], targets)
    exceeded = False

    def watch(moment: Moment) -> bool:
        nonlocal exceeded
        exceeded = moment.loss > limit
        return exceeded or moment.step >= setup.horizon

    epochs = math.ceil(setup.horizon / len(inputs))
    method = setup.method(factor)
    result = fit(
        network, method, inputs, targets, epochs=epochs, seed=seed, callback=watch, every=WINDOW
    )
    if result.status == "interrupted":
        raise KeyboardInterrupt
    return exceeded or result.status == "diverged"


def _setups(quick: bool, only: Only, folder: str | Path | None) -> list[Setup]:
    if only not in ("all", "benchmarks", "xor"):
        raise InputError(f"only must be 'all', 'benchmarks' or 'xor'; got {only!r}")
    setups = []
    if only != "xor":
        names = QUICK_BENCHMARKS if quick else BENCHMARK_NAMES
        setups += [Setup(BENCHMARKS[name], BENCHMARKS[name].task(folder)) for name in names]
    if only != "benchmarks":
        units = QUICK_UNITS if quick else XOR_UNITS
        setups += [Setup(Benchmark(f"XOR {count}", "xor", (2, count, 2))) for count in units]
    return setups


class _Outcomes:
    """Which runs were unstable: by setup and C, in the order of seeds, on disk at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # What a run's outcome depends on besides its setup, its C and its seed.
        self._identity = {"definition": DEFINITION, "numerics": NUMERICS_VERSION}
        self._known: dict[str, dict[str, list[bool]]] = {}
        if path.exists():
            self._known = self._read()

    def _read(self) -> dict[str, dict[str, list[bool]]]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            identity = {name: content[name] for name in self._identity}
            known = {
                str(setup): {str(factor): [bool(run) for run in runs] for factor, runs in by_c.items()}
                for setup, by_c in content["unstable"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{self._path} is damaged; remove it or name another folder") from None
        if identity != self._identity:
            raise InputError(
                f"{self._path} is of another version of pesky; remove it or name another folder"
            )
        return known

    def get(self, setup: Setup, factor: float, seed: int) -> bool:
        """Return the outcome of a run, which is made if need be; seeds must come in order."""
        known = self._known.setdefault(setup.name, {}).setdefault(f"{factor:.6g}", [])
        if seed == len(known):
            known.append(is_unstable(setup, factor, seed))
            with atomic_path(self._path) as temporary:
                text = json.dumps({**self._identity, "unstable": self._known}, indent=1)
                temporary.write_text(text, encoding="utf-8")
        return known[seed]


def _critical(
    setup: Setup, outcomes: _Outcomes, runs: int, per_decade: int, say: Callable[[str], None]
) -> Found:
    def unstable(factor: float, seed: int) -> bool:
        if seed == 0:
            say(f"{setup.name}: C = {_plain(factor)}, at most {runs} runs of {setup.horizon} samples")
        return outcomes.get(setup, factor, seed)

    return search(unstable, grid(setup.parameters, per_decade), runs)


def _trial(unstable: Callable[[float, int], bool], factor: float, runs: int, needed: int) -> Trial:
    seen = 0
    for seed in range(runs):
        seen += unstable(factor, seed)
        if seen >= needed or seen + (runs - seed - 1) < needed:
            return Trial(factor, seen, seed + 1)
    return Trial(factor, seen, runs)


def _mean_loss(
    network: Network, inputs: NDArray[np.float32], targets: NDArray[np.int64] | None
) -> float:
    if targets is None:
        return network.error(inputs)
    outputs = network.outputs(inputs).astype(np.float64)
    likely = np.logaddexp.reduce(outputs, axis=1)
    return float(np.mean(likely - outputs[np.arange(len(inputs)), targets[: len(inputs)]]))


def _row(setup: Setup, found: Found) -> dict[str, Any]:
    return {
        "name": setup.name,
        "layers": list(setup.benchmark.layers),
        "parameters": setup.parameters,
        "horizon": setup.horizon,
        "critical": found.factor,
        "status": found.status,
        "papers_choice": slow_start_factor(setup.parameters),
        "tried": [
            {"C": trial.factor, "unstable": trial.unstable, "runs": trial.runs} for trial in found.trials
        ],
    }


def shown(row: dict[str, Any]) -> str:
    """Return a setup's critical C, or the bound known, in words."""
    if row["critical"] is None:
        return str(row["status"])
    return _plain(row["critical"]) if row["status"] == "found" else f"at least {_plain(row['critical'])}"


def _plain(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 10 else f"{factor:.3g}"


# Marker of a benchmark, marker of XOR: where C is known, and where only a bound is.
_MARKERS = {"found": ("o", "*"), "below 1": ("v", "v"), "not bounded by the grid": ("^", "^")}


def _draw(numbers: dict[str, Any]) -> Picture:
    figure, axes = new_figure(7.4, 6)
    rows = numbers["setups"]
    ends = np.array(
        [min(row["parameters"] for row in rows) / 2, max(row["parameters"] for row in rows) * 2]
    )
    axes.loglog(ends, ends / 10, color="black", linestyle=":", label="C = d/10, the paper's choice")
    for is_xor in (False, True):
        chosen = [row for row in rows if row["name"].startswith("XOR") == is_xor]
        label = "XOR, one hidden layer" if is_xor else "benchmark"
        for place, row in enumerate(chosen):
            _draw_setup(axes, row, is_xor, label if place == 0 else None)
    axes.set_xlim(*ends)
    axes.set_ylim(bottom=0.4)
    below = any(row["critical"] is None for row in rows)
    tidy(axes, x="parameters d", y="critical C" + " (triangle at the bottom: below 1)" * below)
    figure.supxlabel(_caption(numbers["runs"]), fontsize=9, color="0.35")
    legend_above(figure, axes, columns=3)
    return Picture("critical", figure, numbers)


def _draw_setup(axes: Axes, row: dict[str, Any], is_xor: bool, label: str | None) -> None:
    color = GREEN if is_xor else BLUE
    known = row["status"] == "found"
    place = (row["parameters"], row["critical"] or 1.0)
    axes.plot(
        *place,
        color=color,
        linestyle="none",
        marker=_MARKERS[row["status"]][is_xor],
        markersize=13 if is_xor and known else 8,
        markerfacecolor=color if known else "white",
        label=label,
    )
    text = f"{row['layers'][1]:,}" if is_xor else row["name"]
    axes.annotate(
        text,
        place,
        xytext=(0, 9 if is_xor else -9),  # XOR tends to be above the line, benchmarks below
        textcoords="offset points",
        va="bottom" if is_xor else "top",
        ha="center",
        fontsize=9,
        bbox=PLAIN_BOX,
        zorder=1,
    )


def _caption(runs: int) -> str:
    words = f"{CRITICAL}\n{DEFINITION}"
    return words.replace("the runs", f"{runs} runs").replace(", or its mean", ",\nor its mean")
