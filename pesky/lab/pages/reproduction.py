"""The page that puts our numbers beside the paper's: made from a store, never edited."""

from pesky.lab.benchmarks import BENCHMARKS, METHOD_TITLES
from pesky.lab.pages.race_tables import (
    Standings,
    costs_table,
    counts_table,
    errors_table,
    missing,
    settings_table,
)
from pesky.lab.race.recorded import Recorded
from pesky.lab.race.rows import Store
from pesky.lab.race.standings import MeanError, standings
from pesky.lab.tables.markdown import markdown_table

__all__ = ["reproduction_page"]

_INTRODUCTION = """# The paper's tables, reproduced

Made by `{command}` from rows of `pesky race`; not edited by hand.

Every number of ours is the mean of fresh runs (seeds that no setting was chosen by) after 6 epochs,
batch size 1, with its standard error; the paper's stands below it. Bold: not different from the
best of its row at p = 0.01 (Welch's test), as in the paper. A star marks numbers that differ from
the paper's by more than 5 % and by more than two of our standard errors; they are listed below the
tables. Rivals were tuned on the test set, as in the paper. A tuning run whose test error after one
epoch is more than three times that of vSGD-l at the same seed, and more than half of the untrained
network's, was given up; it never wins.
"""


def reproduction_page(store: Store, command: str) -> str:
    """Return the page as Markdown."""
    tables = {name: {row.method: row for row in standings(Recorded(store, name))} for name in BENCHMARKS}
    parts = [
        _INTRODUCTION.format(command=command),
        "## Table 2: error on the training set, percent (CR: reconstruction error)\n",
        markdown_table(errors_table(tables, "train")),
        "## Table 3: error on the test set\n",
        markdown_table(errors_table(tables, "test")),
        "Settings compared:\n",
        markdown_table(counts_table(tables)),
        "## Table 1: best settings found\n",
        markdown_table(settings_table(tables)),
        "## What tuning cost\n",
        markdown_table(costs_table(tables)),
        "## Numbers that differ from the paper's\n",
        _list(_misses(tables), "None."),
        "## What has not been run\n",
        _list(
            [
                f"{name}: {', '.join(absent)} (`pesky race {name}`)"
                for name, absent in missing(tables).items()
            ],
            "Nothing.",
        ),
    ]
    return "\n".join(parts)


def _list(items: list[str], empty: str) -> str:
    return "\n".join([f"- {item}" for item in items] or [empty]) + "\n"


def _misses(tables: Standings) -> list[str]:
    return [
        f"{benchmark}, {METHOD_TITLES[method]}, {part}: {_difference(error, error.paper)}"
        for benchmark, of_methods in tables.items()
        for method, row in of_methods.items()
        for part, error in (("train", row.train), ("test", row.test))
        if error is not None and error.agrees is False and error.paper is not None
    ]


def _difference(error: MeanError, published: float) -> str:
    low, high = error.mean - 2 * error.error, error.mean + 2 * error.error
    return (
        f"ours {error.mean:.2f} ({low:.2f} to {high:.2f}, {error.runs} runs), paper {published:.2f}, "
        f"{100 * (error.mean / published - 1):+.0f} %"
    )
