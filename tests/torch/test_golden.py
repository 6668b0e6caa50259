"""Golden trajectories: nothing changes the numbers of pesky.torch unnoticed, on any processor."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pesky.errors import InputError
from pesky.torch.passes.eager import EagerBundle
from pesky.torch.passes.fused import FusedBundle
from pesky.torch.passes.rows import RowsBundle
from tests.torch.golden import (
    CASES,
    COMMAND,
    FORMS,
    GRANULARITIES,
    INITIAL,
    PLAIN,
    SPECIAL,
    Case,
    Words,
    changed,
    gap,
    golden,
    grid,
    numbers,
    passes_of,
    read,
    run,
    vector,
)

# A start that is off by 1e-12 ends up to 1e-10 away, and the order of sums, or another processor's
# instructions, make 1e-10 at most; 3 % of any constant make 1e-4 at least.
TOLERANCE = 1e-8
NUDGE = 1e-12

RUNS = [(name, passes) for name, case in CASES.items() for passes in passes_of(case)]


def flat(of):
    return {
        f"{name} {number}": value for name, values in of.items() for number, value in enumerate(values)
    }


@pytest.mark.parametrize(("name", "passes"), RUNS)
def test_trajectories_are_golden(name, passes):
    case, (factor, kept) = CASES[name], golden(name)
    found = numbers(case, factor, **passes_of(case)[passes])
    assert flat(found) == pytest.approx(flat(kept), rel=TOLERANCE, abs=0), (
        f"{name} gives other numbers than golden.csv has: if that is meant, make it anew by `{COMMAND}`"
    )


@pytest.mark.parametrize("name", CASES)
def test_no_golden_number_hangs_on_the_last_bits(name):
    factor, kept = golden(name)
    assert gap(numbers(CASES[name], factor, nudge=NUDGE), kept) < TOLERANCE / 10


# --- What is guarded --------------------------------------------------------------------------------


def test_every_form_granularity_and_pass_has_its_trajectory():
    kept = read()
    assert set(kept) == set(CASES)
    assert all(kept[name]["moves"][0] >= 120 for name in CASES)
    guarded = {
        (case.form, case.granularity, passes) for case in PLAIN.values() for passes in passes_of(case)
    }
    everything = {
        (form, granularity, passes)
        for form in FORMS
        for granularity in GRANULARITIES
        for passes in ("fused", "eager", "sparse")
    }
    assert everything - guarded == {
        (form, granularity, "sparse") for form in FORMS for granularity in REFUSED_WITH_SPARSE
    }


REFUSED_WITH_SPARSE = ("block", "global")


@pytest.mark.parametrize("granularity", REFUSED_WITH_SPARSE)
@pytest.mark.parametrize("form", FORMS)
def test_sparse_gradients_have_no_shared_rates(form, granularity):
    with pytest.raises(InputError, match="granularity must be 'element' for parameters with sparse"):
        next(run(Case(form, granularity, Words)))


@pytest.mark.parametrize(("name", "passes"), [pair for pair in RUNS if pair[0] in PLAIN])
def test_passes_are_those_that_the_name_says(name, passes, monkeypatch):
    used = set()
    for kind in (FusedBundle, EagerBundle, RowsBundle):
        begin = kind.__init__

        def noting(self, *given, kind=kind, begin=begin):
            used.add(kind)
            begin(self, *given)

        monkeypatch.setattr(kind, "__init__", noting)
    case = CASES[name]
    for step, _ in enumerate(run(case, **passes_of(case)[passes])):
        if step > INITIAL:
            break
    expected = {"fused": {FusedBundle}, "eager": {EagerBundle}, "sparse": {RowsBundle, FusedBundle}}
    assert used == expected[passes]


# Where each constant has a say. SHORTEST has no trajectory: steps so short are nothing but rounding.
ROBUST = ("measuring element layers", "again element layers", "following element layers")
SHORT = ("measuring element words", "again element words")  # whose first directions are too short
SAYS = {
    "pesky.rule.START_MEMORY": (
        *("paper element layers", "paper block layers", "paper global layers"),
        *(name for name, case in PLAIN.items() if case.problem is Words),  # rows follow the paper
    ),
    "pesky.length.MEMORY": ROBUST,
    "pesky.length.MEMORY_SHARE": ROBUST,
    "pesky.length.PROBE": SHORT,
    "pesky.torch.step.following._FIRST": ROBUST[2:],
    "pesky.length.PROBE_FACTOR": SHORT,
    "pesky.length.SHARE": ROBUST[:2],
    "pesky.length.FOLLOWING": ROBUST[2:],
    "pesky.length.FEWEST": ("seldom", *ROBUST),
    "pesky.length.GROSS": ("undone",),
    "pesky.length.STEEP": ("steep",),
    "pesky.length.ATTEMPTS": ("walled",),
    "pesky.torch.step.following._GROSS": ("turned",),
    "pesky.torch.step.following._LAG": ("calmed",),
    "pesky.torch.step.following._KEPT": ("calmed",),
    "pesky.torch.stepping._CALM_SHARE": ROBUST[:2],
    "pesky.torch.step.collective.HISTORY": ROBUST,
}


@pytest.mark.parametrize(
    ("constant", "name"), [(constant, name) for constant, names in SAYS.items() for name in names]
)
def test_a_changed_constant_breaks_the_trajectories_it_has_a_say_in(constant, name):
    factor, kept = golden(name)
    with changed(constant, times=1.03):
        assert gap(numbers(CASES[name], factor), kept) > 1000 * TOLERANCE


def test_every_special_trajectory_is_there_for_a_constant():
    assert set(SPECIAL) <= {name for names in SAYS.values() for name in names}


# --- Other types ------------------------------------------------------------------------------------

STEPS = 10  # that move


class Drift(nn.Module):
    """A linear layer behind targets that move on.

    The robust forms begin with 1e-3 of the direction, which bfloat16 has to tell from nothing. It does
    where parameters begin at zero.
    """

    inputs = 256

    def __init__(self, dtype):
        super().__init__()
        self.layer = nn.Linear(self.inputs, 2, dtype=dtype)
        for one in self.parameters():
            nn.init.zeros_(one)

    def forward(self, x):
        return self.layer(x)

    @staticmethod
    def criterion(outputs, targets):
        return mse_loss(outputs, targets.to(outputs.dtype))

    @classmethod
    def batches(cls, steps):
        rng = np.random.default_rng(15)
        for step in range(steps):
            targets = grid(rng, 16, 2, most=1.0) + (step + 4) * np.array([0.5, -0.75])
            yield torch.tensor(1 + grid(rng, 16, cls.inputs, most=0.5)), torch.tensor(targets)


# How many eps of its type a run may be away from the one in float64.
ROUNDED = STEPS / 2  # parameters are rounded in each step, by eps / 2 at most
MEASURED = 4 * STEPS  # a step's length comes from differences of losses, four in number

PRECISIONS = [
    (case, torch.float32, MEASURED if case.form in ("measuring", "again") else ROUNDED)
    for case in PLAIN.values()
]
PRECISIONS += [(case, torch.bfloat16, ROUNDED) for case in PLAIN.values() if case.form == "paper"]
PRECISIONS += [
    (Case(form, granularity, Drift), torch.bfloat16, ROUNDED if form == "following" else MEASURED)
    for form in ("measuring", "again", "following")
    for granularity in GRANULARITIES
]


def first_moves(case, dtype):
    """Parameters and scale after each of the first steps that move.

    Finite differences of gradients multiply rounding: `step/test_levels.py` has them in other types.
    """
    settings = {} if case.form == "paper" else {"curvature": "hutchinson"}
    short = replace(case, steps=INITIAL + STEPS, settings=settings)
    found = [(vector(net), optimizer.collective.scale) for _, net, optimizer in run(short, dtype=dtype)]
    return found[INITIAL:]


@pytest.mark.parametrize(
    ("case", "dtype", "allowed"),
    PRECISIONS,
    ids=lambda value: (
        f"{value.form}-{value.granularity}-{value.problem.__name__}" if isinstance(value, Case) else None
    ),
)
def test_other_types_begin_as_float64_does(case, dtype, allowed):
    tolerance = allowed * torch.finfo(dtype).eps
    exact, rounded = (first_moves(case, kind) for kind in (torch.float64, dtype))
    for (theta, scale), (theta_found, scale_found) in zip(exact, rounded, strict=True):
        assert (theta_found - theta).norm() <= tolerance * theta.norm()
        assert scale_found == pytest.approx(scale, rel=tolerance)
    assert not torch.equal(exact[-1][0], rounded[-1][0])
