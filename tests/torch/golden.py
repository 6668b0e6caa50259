"""Golden trajectories of pesky.torch: the problems, the runs, and the file of their numbers.

    python -m tests.torch.golden            how far this machine is from golden.csv
    python -m tests.torch.golden --write    make golden.csv anew, after a change that is meant

Start and data are NumPy's, on a grid that every floating-point type holds exactly; torch draws nothing.
Only what users can see is recorded: losses, parameters, and what `explain()` tells.
"""

import argparse
import csv
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from pesky.torch import VSGD
from tests.torch.loops import dialect_of

FILE = Path(__file__).with_suffix(".csv")
COMMAND = "python -m tests.torch.golden --write"
DIGITS = 12

FORMS = ("paper", "measuring", "again", "following")  # again: measuring, by backward(loss, again=...)
GRANULARITIES = ("element", "block", "global")
INITIAL = 10  # steps that only collect: the default of `init_batches`
STEPS = INITIAL + 130
MARKS = (INITIAL + 1, 20, 50, 90)  # steps, counted from 1, whose numbers are kept; and those of the last
BATCH, INPUTS, HIDDEN, CLASSES, WORDS, LENGTH = 16, 6, 5, 3, 7, 3


# --- Start and data ---------------------------------------------------------------------------------


def grid(rng, *shape, most):
    """Multiples of 1/16 between -most and most, from the generator's plainest numbers."""
    return np.round((2 * rng.random(shape) - 1) * most * 16) / 16


def nudged(values, nudge, rng):
    """Values that are off by so much, relatively, up or down."""
    return values * (1 + nudge * np.where(rng.random(values.shape) < 0.5, -1, 1))


def apart(values):
    """The same values where no two are neighbours in memory, which compiled kernels leave alone."""
    return torch.stack([values, values], dim=-1)[..., 0]


class Layers(nn.Module):
    """Two layers; their parameters are contiguous, and so for the kernels, or not."""

    criterion = staticmethod(cross_entropy)

    def __init__(self, dtype=torch.float64, nudge=0.0, contiguous=True):
        super().__init__()
        rng, signs = np.random.default_rng(7), np.random.default_rng(8)
        shapes = {(HIDDEN, INPUTS): 1.0, (HIDDEN,): 0.5, (CLASSES, HIDDEN): 1.0, (CLASSES,): 0.5}
        starts = [nudged(grid(rng, *shape, most=most), nudge, signs) for shape, most in shapes.items()]
        tensors = [torch.tensor(start, dtype=dtype) for start in starts]
        self.values = nn.ParameterList(map(nn.Parameter, tensors if contiguous else map(apart, tensors)))

    def forward(self, x):
        inner, inner_bias, outer, outer_bias = self.values
        return linear(torch.tanh(linear(x, inner, inner_bias)), outer, outer_bias)

    @staticmethod
    def batches(steps):
        rng = np.random.default_rng(14)
        truth = grid(rng, INPUTS, CLASSES, most=1.0)
        for _ in range(steps):
            x = grid(rng, BATCH, INPUTS, most=2.0)
            scores = x @ truth + grid(rng, BATCH, CLASSES, most=4.0)
            yield torch.tensor(x), torch.tensor(scores.argmax(1))


class Words(nn.Module):
    """Embeddings with sparse gradients under a dense layer."""

    criterion = staticmethod(cross_entropy)

    def __init__(self, dtype=torch.float64, nudge=0.0):
        super().__init__()
        rng, signs = np.random.default_rng(4), np.random.default_rng(5)
        self.embedding = nn.Embedding(WORDS, HIDDEN, sparse=True)
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.to(dtype)
        with torch.no_grad():
            for one in self.parameters():
                one.copy_(torch.tensor(nudged(grid(rng, *one.shape, most=1.0), nudge, signs)))

    def forward(self, words):
        return self.head(torch.tanh(self.embedding(words).sum(1)))

    @staticmethod
    def batches(steps):
        rng = np.random.default_rng(6)
        truth = grid(rng, WORDS, CLASSES, most=1.0)
        for _ in range(steps):
            words = np.floor(rng.random((BATCH, LENGTH)) * WORDS).astype(np.int64)
            scores = truth[words].sum(1) + grid(rng, BATCH, CLASSES, most=2.0)
            yield torch.tensor(words), torch.tensor(scores.argmax(1))


# --- What is run ------------------------------------------------------------------------------------


class Accident(NamedTuple):
    """What happens in one step, and the constant that decides whether it counts as an accident."""

    step: int
    kind: str  # as `closures` have it
    constant: str | None = None  # the factor on the loss is set so that this one just lets it count


@dataclass(frozen=True)
class Case:
    """One trajectory."""

    form: str
    granularity: str = "element"
    problem: Callable[..., nn.Module] = Layers
    steps: int = STEPS
    accident: Accident | None = None
    settings: dict[str, Any] = field(default_factory=dict)


PLAIN = {
    f"{form} {granularity} {problem.__name__.lower()}": Case(form, granularity, problem)
    for form in FORMS
    for granularity in GRANULARITIES
    for problem in (Layers, Words)
    if problem is Layers or granularity == "element"  # sparse gradients allow no other
}
# Some constants matter only where measurements are much rarer than they are by default, or in accidents.
# After 91 moves, which is in step 101, losses are not due; after 92 they are.
SPECIAL = {
    "seldom": Case("measuring", steps=INITIAL + 340, settings={"curvature_every": 50}),
    "undone": Case("again", accident=Accident(100, "peak", "pesky.length.GROSS")),
    "steep": Case("measuring", accident=Accident(101, "walls", "pesky.length.STEEP")),
    "walled": Case("measuring", accident=Accident(102, "walls")),
    "turned": Case("following", accident=Accident(100, "opposed", "pesky.torch.step.following._GROSS")),
    "calmed": Case("following", accident=Accident(100, "small")),
}
CASES = PLAIN | SPECIAL

SMALL = 0.03  # times the loss
JUST = 1.01  # times its constant: what an accident just exceeds


def passes_of(case: Case) -> dict[str, dict[str, Any]]:
    """Return the ways over tensors by which a trajectory can be had, each with the start it needs."""
    return {"fused": {}, "eager": {"contiguous": False}} if case.problem is Layers else {"sparse": {}}


def closures(
    case: Case, net: nn.Module, dtype: torch.dtype, factor: float
) -> Iterator[Callable[[], Any]]:
    """Yield each step's loss as a function; it is computed in float32 at least."""
    wide = torch.promote_types(dtype, torch.float32)
    before = None

    def loss_of(x, y, times=1.0):
        inputs = x.to(dtype) if x.is_floating_point() else x
        return lambda: times * net.criterion(net(inputs).to(wide), y)

    for step, (x, y) in enumerate(net.batches(case.steps)):
        match case.accident:
            case Accident(at, "opposed") if step == at:  # to what the last step has learnt
                yield loss_of(before[0], (before[1] + 1) % CLASSES, factor)
            case Accident(at, "walls") if step == at:
                yield changed_elsewhere(loss_of(x, y, factor), net, elsewhere=inf)
            case Accident(at, "peak") if step == at:
                yield changed_elsewhere(loss_of(x, y), net, here=factor)
            case Accident(at, "small") if step >= at:
                yield loss_of(x, y, SMALL)
            case _:
                yield loss_of(x, y)
        before = x, y


def changed_elsewhere(loss, net, here=0.0, elsewhere=0.0):
    """The loss, plus one number where it is computed first, and another one everywhere else."""
    first = []

    def changed():
        there = [one.detach().clone() for one in net.parameters()]
        if not first:
            first.extend(there)
        return loss() + (here if all(map(torch.equal, first, there)) else elsewhere)

    return changed


def run(
    case: Case, factor: float = 1.0, dtype: torch.dtype = torch.float64, **start: Any
) -> Iterator[tuple[float, nn.Module, VSGD]]:
    """Yield loss, network and optimizer after each step."""
    net = case.problem(dtype, **start)
    optimizer = VSGD(
        net.parameters(), granularity=case.granularity, dialect=dialect_of(case.form), **case.settings
    )
    for closure in closures(case, net, dtype, factor):
        if case.form in ("paper", "measuring"):
            loss = optimizer.minimize(closure)
        else:
            optimizer.zero_grad()
            loss = closure()
            optimizer.backward(loss, again=closure if case.form == "again" else None)
            optimizer.step()
        yield loss.item(), net, optimizer


def vector(net: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().double().flatten() for one in net.parameters()])


Numbers = dict[str, list[float]]


def numbers(case: Case, factor: float = 1.0, **start: Any) -> Numbers:
    """Run; return the numbers that golden.csv keeps of it."""
    found: Numbers = {}

    def add(**values):
        for name, value in values.items():
            found.setdefault(name, []).append(value)

    begin = vector(case.problem(torch.float64, **start))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # accidents are meant here
        for step, (loss, net, optimizer) in enumerate(run(case, factor, **start), start=1):
            if step not in (*MARKS, case.steps):
                continue
            theta = vector(net)
            add(loss=loss, norm=theta.norm().item(), distance=(theta - begin).norm().item())
            if case.form != "paper":
                shared = optimizer.collective.as_dict()
                add(scale=shared["scale"], caution=shared["caution"])
    told = optimizer.explain().as_dict()
    for report in told["parameters"]:
        quartiles = {name: report[name] for name in ("rate", "memory", "signal", "curvature")}
        add(**{name: sum(values) for name, values in quartiles.items()})
    add(steps=told["steps"], moves=optimizer.state_dict()["counters"]["moves"])
    if case.form != "paper":
        add(shortened=shared["shortened"], restored=shared["restored"], history=sum(shared["history"]))
    return found


# --- The file ---------------------------------------------------------------------------------------


def calibrated(case: Case) -> float:
    """Return the factor on the loss above which an accident counts, its constant being a bit larger."""
    assert case.accident is not None
    assert case.accident.constant is not None
    low, high = 1.0, 1e4
    with changed(case.accident.constant, JUST):
        if is_accident(case, low) or not is_accident(case, high):
            raise RuntimeError(f"no factor between {low} and {high} decides about {case.accident}")
        while high / low > 1.001:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if is_accident(case, middle) else (middle, high)
    return float(f"{high:.4g}")


def is_accident(case: Case, factor: float) -> bool:
    """Whether a step is shortened or undone when it happens; where gradients are followed, undone."""
    assert case.accident is not None
    count = before = 0
    for step, (_, _, optimizer) in enumerate(run(case, factor)):
        shared = optimizer.collective.as_dict()
        before, count = count, shared["restored"]
        count += shared["shortened"] if case.form != "following" else 0
        if step == case.accident.step:
            break
    return count > before


def changed(constant: str, times: float) -> Any:
    """Change a constant, in a context: a whole number by one."""
    module, _, name = constant.rpartition(".")
    value = getattr(import_module(module), name)
    return patch(constant, value + 1 if isinstance(value, int) else value * times)


def write() -> None:
    rows = []
    for name, case in CASES.items():
        factor = calibrated(case) if case.accident and case.accident.constant else 1.0
        found = {"factor": [factor]} | numbers(case, factor)
        rows += [[name, quantity, *map(shown, values)] for quantity, values in found.items()]
    with FILE.open("w", newline="") as file:
        file.write(f"# Made by: {COMMAND}\n")
        csv.writer(file, lineterminator="\n").writerows([["trajectory", "quantity", "values"], *rows])


def shown(value: float) -> str:
    return f"{value:.{DIGITS}g}"


def read() -> dict[str, Numbers]:
    with FILE.open(newline="") as file:
        rows = list(csv.reader(line for line in file if not line.startswith("#")))
    found: dict[str, Numbers] = {}
    for name, quantity, *values in rows[1:]:
        found.setdefault(name, {})[quantity] = [float(value) for value in values]
    return found


def golden(name: str) -> tuple[float, Numbers]:
    """Return a trajectory's factor, and its numbers."""
    kept = read()[name]
    return kept.pop("factor")[0], kept


def gap(found: Numbers, expected: Numbers) -> float:
    """Return the largest relative difference; infinity where something is not a number."""
    pairs = [pair for name in expected for pair in zip(found[name], expected[name], strict=True)]
    gaps = [
        0.0 if one == other else abs(one - other) / max(abs(one), abs(other)) for one, other in pairs
    ]
    return max(one if one >= 0 else inf for one in gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make golden.csv anew")
    if parser.parse_args().write:
        write()
    for name, case in CASES.items():
        factor, kept = golden(name)
        for passes, start in passes_of(case).items():
            print(f"{name:26} {passes:6} {gap(numbers(case, factor, **start), kept):.1e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
