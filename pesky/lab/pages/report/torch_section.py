"""The report's section on the PyTorch table: VSGD beside Adam, ranks, and curves."""

from pathlib import Path

from pesky.lab.figures.picture import Picture
from pesky.lab.pages.report.captions import count
from pesky.lab.pages.report.picture import html_figure
from pesky.lab.runs.means import PARTS
from pesky.lab.tables.html import html_note, html_table
from pesky.lab.tables.table import NOTHING, Table
from pesky.lab.torch_table.contestants import CONTESTANTS
from pesky.lab.torch_table.drawing import fan, losses
from pesky.lab.torch_table.page import ranks_table
from pesky.lab.torch_table.rows import Store
from pesky.lab.torch_table.table import Standing, TorchTable
from pesky.lab.torch_table.tasks import TASKS

__all__ = ["torch_section"]

_SHOWN = ("vsgd", "adam")
_MEANING = "Mean over seeds ± standard error, of the model as a user has it after the loop."


def torch_section(path: Path) -> str:
    """Return the section as HTML, from the store of ``pesky torch-table`` at a path.

    The test split is not a part of it.
    """
    tasks = tuple(task for task in TASKS.values() if task.split == "development")
    table = TorchTable(tasks, tuple(CONTESTANTS.values()))
    with Store(path) as store:
        standings = table.standings(store)
        pictures = _pictures(table, store)
    return (
        f"<h2>In PyTorch, nothing set</h2>{html_note(_MEANING)}{html_table(_against_adam(standings))}"
        f"{_ranks(standings)}{pictures}"
    )


def _against_adam(standings: dict[str, list[Standing]]) -> Table:
    titles = [CONTESTANTS[name].title for name in _SHOWN]
    header = ["", *(f"{title}, {part}" for part in ("loss", "test") for title in titles)]
    rows = []
    for task, of_task in standings.items():
        if any(one.is_begun for one in of_task):
            named = {one.contestant.name: one for one in of_task}
            numbers = (named[name].number(part) for part in PARTS for name in _SHOWN)
            rows.append([task, *(str(number or NOTHING) for number in numbers)])
    return Table(header, rows, title="In PyTorch, nothing set")


def _ranks(standings: dict[str, list[Standing]]) -> str:
    ranks, tasks = ranks_table(standings)
    if not tasks:
        return ""
    note = f"Average rank of the untuned over {len(tasks)} of {len(standings)} tasks; 1 is the best."
    return html_note(note) + html_table(ranks)


def _pictures(table: TorchTable, store: Store) -> str:
    drawn = [
        (
            fan(table, store),
            "Test numbers of the untuned among all rates of SGD and Adam, divided by each task's lowest",
        )
    ]
    drawn += [(losses(table, rows), rows.task.title) for rows in table.rows(store)]
    return "".join(
        html_figure(f"{title}: {_extent(picture)}.", picture.svg(), picture.narrow_svg())
        for picture, title in drawn
        if picture is not None
    )


def _extent(picture: Picture) -> str:
    """Return how much was drawn, from a picture's own numbers."""
    numbers = picture.numbers
    if "curves" in numbers:
        steps, contestants = count(numbers["steps"], "step"), count(len(numbers["curves"]), "contestant")
        return f"loss against steps and seconds, {steps}, {contestants}"
    tasks = numbers["tasks"]
    rates = sum(len(grid) for task in tasks for grid in task["rates"].values())
    return f"{count(len(tasks), 'task')}, {count(rates, 'run')} at rates that were tried"
