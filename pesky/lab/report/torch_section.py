"""The report's section on the PyTorch table: VSGD beside Adam, ranks, and curves."""

from html import escape
from pathlib import Path

from pesky.lab.report import html
from pesky.lab.torch_table.contestants import CONTESTANTS
from pesky.lab.torch_table.drawing import fan, losses
from pesky.lab.torch_table.rows import Store
from pesky.lab.torch_table.table import PARTS, RANKS_HEADER, Standing, Table, rank_lines
from pesky.lab.torch_table.tasks import TASKS

__all__ = ["torch_section"]

_SHOWN = ("vsgd", "adam")


def torch_section(path: Path) -> str:
    """Return the section as HTML, from the store of ``pesky torch-table`` at a path."""
    table = Table(tuple(TASKS.values()), tuple(CONTESTANTS.values()))
    with Store(path) as store:
        standings = table.standings(store)
        pictures = _pictures(table, store)
    rows = [
        _row(task, of_task)
        for task, of_task in standings.items()
        if any(one.is_begun for one in of_task)
    ]
    titles = [CONTESTANTS[name].title for name in _SHOWN]
    header = ["", *(f"{title}, loss" for title in titles), *(f"{title}, test" for title in titles)]
    return (
        "<h2>In PyTorch, nothing set</h2>"
        '<p class="note">Mean over seeds ± standard error, of the model as a user has it after the loop.'
        f"</p>{html.table(header, rows)}{_ranks(standings)}{pictures}"
    )


def _row(task: str, standings: list[Standing]) -> str:
    named = {one.contestant.name: one for one in standings}
    numbers = (named[name].number(part) for part in PARTS for name in _SHOWN)
    cells = "".join(f"<td>{escape(str(number or '–'))}</td>" for number in numbers)
    return f"<tr><td>{escape(task)}</td>{cells}</tr>"


def _ranks(standings: dict[str, list[Standing]]) -> str:
    lines, tasks = rank_lines(standings)
    if not tasks:
        return ""
    rows = ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines]
    note = f"Average rank of the untuned over {len(tasks)} of {len(standings)} tasks; 1 is the best."
    return f'<p class="note">{note}</p>{html.table(RANKS_HEADER, rows)}'


def _pictures(table: Table, store: Store) -> str:
    drawn = {"VSGD with nothing set between the rates of Adam and SGD.": fan(table, store)}
    drawn |= {
        f"{rows.task.title}: loss against steps and seconds.": losses(table, rows)
        for rows in table.rows(store)
    }
    return "".join(
        html.figure(caption, picture.svg()) for caption, picture in drawn.items() if picture is not None
    )
