"""The page's section on what VSGD's robust form is without some of its parts."""

from pesky.lab.tables.markdown import markdown_table
from pesky.lab.tables.table import NOTHING, Table
from pesky.lab.torch_table.contestants import CONTESTANTS, VARIANTS, Contestant
from pesky.lab.torch_table.rows import Store
from pesky.lab.torch_table.table import Standing, TaskRows, TorchTable

__all__ = ["ablation_section"]

_WHOLE = CONTESTANTS["vsgd"]
_LINES = {f"everything ({_WHOLE.title})": _WHOLE}
_LINES |= {variant.title: variant for variant in VARIANTS.values()}

_EXPLANATION = """VSGD robust, and what it is where one thing is done differently; [theory.md](theory.md)
says what the parts are. Each cell is training loss / test number, as means over the seeds that the
column names: those which every line that has any run on this task has. The variants take no part in
other tables.

"""


def ablation_section(table: TorchTable, store: Store) -> str:
    """Return the table of all variants, on the tasks that any of them has run."""
    columns = [
        _column(rows, table.seeds)
        for rows in table.rows(store)
        if any(_seeds(rows, variant, table.seeds) for variant in VARIANTS.values())
    ]
    if not columns:
        return f"Nothing has been run: `pesky torch-table --ablation{' --quick' * table.quick}`.\n"
    header, *lines = zip(["", *_LINES], *columns, strict=True)
    return _EXPLANATION + markdown_table(Table(header, lines))


def _column(rows: TaskRows, wanted: int) -> list[str]:
    """Return the task with its seeds, and a cell for every line."""
    found = [_seeds(rows, one, wanted) for one in _LINES.values()]
    common = sorted(set.intersection(*filter(None, found)))
    seeds = "seed " + ", ".join(map(str, common)) if common else "no seed in common"
    return [
        f"{rows.task.name}, {seeds}",
        *(_cell(rows.standing(one, common)) for one in _LINES.values()),
    ]


def _seeds(rows: TaskRows, contestant: Contestant, wanted: int) -> set[int]:
    """Return at which of the wanted seeds there is a run."""
    (setting,) = contestant.settings
    return {seed for seed in range(wanted) if rows.row(contestant, setting, seed) is not None}


def _cell(standing: Standing) -> str:
    train, test = standing.number("train"), standing.number("test")
    if train is None or test is None:
        return "diverged" if standing.diverged else NOTHING
    text = f"{train.mean:.4g} / {test.mean:.4g}"
    if standing.diverged:
        text += f", {len(standing.diverged)} of {len(standing.runs)} diverged"
    return text
