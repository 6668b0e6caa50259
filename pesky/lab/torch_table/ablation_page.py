"""The page's section on what VSGD's robust form is without some of its parts."""

from collections.abc import Sequence
from typing import NamedTuple

from pesky.lab.runs.means import Part
from pesky.lab.tables.markdown import markdown_table
from pesky.lab.tables.table import NOTHING, Cell, Table
from pesky.lab.torch_table.contestants import CONTESTANTS, VARIANTS, Contestant
from pesky.lab.torch_table.rows import Store
from pesky.lab.torch_table.table import Standing, TaskRows, TorchTable

__all__ = ["ablation_section"]

_WHOLE = CONTESTANTS["vsgd"]
_LINES = {"everything": _WHOLE, **VARIANTS}
_NUMBERS: dict[Part, str] = {"train": "Training loss", "test": "Test number"}

_EXPLANATION = """VSGD robust, and what it is where one thing is done differently; [theory.md](theory.md)
says what the parts are. The variants take no part in other tables.
"""

_NOTE = """Numbers are means over {seeds}, unless a column names others: those which every line that has
any run on its task has. A star says that some of the runs did not come to their end; the mean is of the
others.
"""


class _Column(NamedTuple):
    """A task: the seeds that its lines have in common, and what each line did at these."""

    task: str
    seeds: list[int]
    standings: list[Standing]


def ablation_section(table: TorchTable, store: Store) -> str:
    """Return what the variants are, and a table for each number, on the tasks that any has run."""
    columns = [
        _column(rows, table.seeds)
        for rows in table.rows(store)
        if any(_seeds(rows, variant, table.seeds) for variant in VARIANTS.values())
    ]
    if not columns:
        return f"Nothing has been run: `pesky torch-table --ablation{' --quick' * table.quick}`.\n"
    wanted = list(range(table.seeds))
    return "\n".join(
        [
            _EXPLANATION,
            markdown_table(_what_is_done()),
            _NOTE.format(seeds=_named(wanted)),
            *(
                f"{title}:\n\n{markdown_table(_numbers(columns, wanted, part))}"
                for part, title in _NUMBERS.items()
            ),
        ]
    )


def _what_is_done() -> Table:
    rows = [(name, _WHOLE.title if one is _WHOLE else one.title) for name, one in _LINES.items()]
    return Table(("", "what is done"), rows)


def _numbers(columns: Sequence[_Column], wanted: list[int], part: Part) -> Table:
    """Return one of the numbers, a line for each variant and a column for each task."""
    header = [one.task if one.seeds == wanted else f"{one.task}, {_named(one.seeds)}" for one in columns]
    rows: list[list[Cell | str]] = [
        [name, *(_cell(one.standings[line], part) for one in columns)]
        for line, name in enumerate(_LINES)
    ]
    return Table(["", *header], rows)


def _column(rows: TaskRows, wanted: int) -> _Column:
    found = [_seeds(rows, one, wanted) for one in _LINES.values()]
    common = sorted(set.intersection(*filter(None, found)))
    return _Column(rows.task.name, common, [rows.standing(one, common) for one in _LINES.values()])


def _seeds(rows: TaskRows, contestant: Contestant, wanted: int) -> set[int]:
    """Return at which of the wanted seeds there is a run."""
    (setting,) = contestant.settings
    return {seed for seed in range(wanted) if rows.row(contestant, setting, seed) is not None}


def _named(seeds: list[int]) -> str:
    if not seeds:
        return "no seed in common"
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _cell(standing: Standing, part: Part) -> Cell:
    number = standing.number(part)
    if number is None:
        return Cell("diverged" if standing.diverged else "too slow" if standing.too_slow else NOTHING)
    return Cell(f"{number.mean:.4g}", starred=bool(standing.diverged or standing.too_slow))
