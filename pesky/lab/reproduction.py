"""The page that puts our numbers beside the paper's: made from a store, never edited."""

from pesky.lab import paper
from pesky.lab.benchmarks import BENCHMARKS, METHODS
from pesky.lab.markdown import markdown_table
from pesky.lab.race.grids import settings_shown
from pesky.lab.race.recorded import Recorded
from pesky.lab.race.store import Store
from pesky.lab.race.table import Cell, Standing, standings, without_result
from pesky.lab.race.tuning import Part

__all__ = ["reproduction_page"]

_NAMES = {
    "vsgd-l": "vSGD-l",
    "vsgd-b": "vSGD-b",
    "vsgd-g": "vSGD-g",
    "vsgd-robust": "vSGD robust",
    "sgd": "SGD",
    "adagrad": "AdaGrad",
    "smd": "SMD",
    "amari": "Amari",
    "almeida": "Almeida",
}

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
        _errors(tables, "train"),
        "## Table 3: error on the test set\n",
        _errors(tables, "test"),
        _counts(tables),
        "## Table 1: best settings found\n",
        _settings(tables),
        "## What tuning cost\n",
        _costs(tables),
        "## Numbers that differ from the paper's\n",
        _misses(tables),
        "## What has not been run\n",
        _missing(tables),
    ]
    return "\n".join(parts)


Tables = dict[str, dict[str, Standing]]


def _errors(tables: Tables, part: Part) -> str:
    rows = []
    for name, standings_of in tables.items():
        ours = (standings_of.get(method) for method in METHODS)
        rows.append([name, *(_cell(None if row is None else row.cell(part)) for row in ours)])
        published = (paper.TRAIN if part == "train" else paper.TEST).get(name)
        if published is not None:
            rows.append(["paper", *(_number(published.get(method)) for method in METHODS)])
    return markdown_table(["", *(_NAMES[method] for method in METHODS)], rows)


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    text = f"**{cell}**" if cell.bold else str(cell)
    return text + (" \\*" if cell.agrees is False else "")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _counts(tables: Tables) -> str:
    rows = [
        [name, *(str(row[method].settings_tried) if method in row else "–" for method in METHODS)]
        for name, row in tables.items()
    ]
    return "Settings compared:\n\n" + markdown_table(["", *(_NAMES[method] for method in METHODS)], rows)


def _settings(tables: Tables) -> str:
    rivals = [method for method in METHODS if not method.startswith("vsgd")]
    rows = []
    for name, standings_of in tables.items():
        ours = [_settings_cell(standings_of.get(method)) for method in rivals]
        rows.append([name, *ours])
        if name in paper.BEST_SETTINGS:
            published = paper.BEST_SETTINGS[name]
            rows.append(["paper", *(_settings_text(published.get(method)) for method in rivals)])
    return markdown_table(["", *(_NAMES[method] for method in rivals)], rows)


def _settings_cell(standing: Standing | None) -> str:
    return "–" if standing is None else _settings_text(standing.settings)


def _settings_text(settings: dict[str, str] | None) -> str:
    return settings_shown(settings) if settings else "–"


def _costs(tables: Tables) -> str:
    rows = []
    for name, standings_of in tables.items():
        for method in METHODS:
            row = standings_of.get(method)
            if row is not None and not method.startswith("vsgd"):
                rows.append(
                    [
                        name,
                        _NAMES[method],
                        str(row.settings_tried),
                        f"{row.tuning_samples / 1e6:.1f} million",
                        f"{row.tuning_seconds:.0f}",
                    ]
                )
    return markdown_table(
        ["", "method", "settings, two runs each", "samples", "seconds of one core"], rows
    )


def _misses(tables: Tables) -> str:
    lines = []
    for name, standings_of in tables.items():
        for method, row in standings_of.items():
            for part, cell in (("train", row.train), ("test", row.test)):
                if cell is not None and cell.agrees is False and cell.paper is not None:
                    lines.append(f"- {name}, {_NAMES[method]}, {part}: {_difference(cell, cell.paper)}")
    return "\n".join(lines or ["None."]) + "\n"


def _difference(cell: Cell, published: float) -> str:
    low, high = cell.mean - 2 * cell.error, cell.mean + 2 * cell.error
    return (
        f"ours {cell.mean:.2f} ({low:.2f} to {high:.2f}, {cell.runs} runs), paper {published:.2f}, "
        f"{100 * (cell.mean / published - 1):+.0f} %"
    )


def _missing(tables: Tables) -> str:
    lines = []
    for name, standings_of in tables.items():
        absent = without_result(name, standings_of)
        if absent:
            lines.append(
                f"- {name}: {', '.join(_NAMES[method] for method in absent)} (`pesky race {name}`)"
            )
    return "\n".join(lines or ["Nothing."]) + "\n"
