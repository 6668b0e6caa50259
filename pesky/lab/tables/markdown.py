"""Tables in Markdown, for pages that are made by commands."""

from collections.abc import Iterable, Iterator

from pesky.lab.tables.table import NOTHING, Cell, Table

__all__ = ["markdown_table"]


def markdown_table(table: Table) -> str:
    r"""Return a table with a line at its end; what stands below in its cells is a row of its own.

    >>> rows = [[Cell("ours", below="paper"), Cell("1.5", bold=True, starred=True, below="2")]]
    >>> print(markdown_table(Table(["", "a"], rows)))
    |  | a |
    |---|---|
    | ours | **1.5** \* |
    | paper | 2 |
    <BLANKLINE>
    """
    lines = [_line(table.header), "|" + "---|" * len(table.header)]
    for row in table.cells():
        lines += map(_line, _rows(row))
    return "\n".join(lines) + "\n"


def _rows(row: list[Cell]) -> Iterator[list[str]]:
    yield [_text(cell) for cell in row]
    if any(cell.below for cell in row):
        yield [cell.below or NOTHING for cell in row]


def _text(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.bold else cell.text
    return text + " \\*" * cell.starred


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"
