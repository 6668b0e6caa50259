"""Tables in a terminal."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pesky.lab.tables.table import Cell, Table

__all__ = ["print_table"]

_ENDLESS = 10_000  # columns


def print_table(table: Table) -> None:
    """Print a table, as wide as it is where it does not go to a terminal.

    In a terminal headings and words fold at its edge; numbers never do.
    """
    screen = Console()
    if not screen.is_terminal:
        screen.width = _ENDLESS  # files and pipes have no edge
    if table.title:
        screen.print(Text(table.title, style="bold"))  # by itself: as wide as the screen, not the table
    screen.print(_drawn(table), crop=False)
    if table.note:
        screen.print(table.note, markup=False, highlight=False, soft_wrap=True)


def _drawn(table: Table) -> RichTable:
    drawn = RichTable()
    rows = list(table.cells())
    for column, heading in enumerate(table.header):
        if column in table.words:
            drawn.add_column(Text(heading), overflow="fold")
            continue
        texts = [_text(row[column]).plain for row in rows]
        longest = max((len(line) for text in texts for line in text.splitlines()), default=0)
        drawn.add_column(Text(heading), justify="right", min_width=longest)
    for row in rows:
        drawn.add_row(*map(_text, row))
    return drawn


def _text(cell: Cell) -> Text:
    text = Text(cell.text, style="bold" if cell.bold else "")
    text.append("*" * cell.starred)
    if cell.below:
        text.append(f"\n{cell.below}", style="not bold dim")
    return text
