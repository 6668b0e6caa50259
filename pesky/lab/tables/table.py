"""A table as a value: what stands in it, apart from how a terminal or a page shows it.

`pesky.lab.tables.markdown`, `pesky.lab.tables.html` and `pesky.cli.screen` each show any table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["NOTHING", "Cell", "Table"]

NOTHING = "–"  # in a cell for which there is no number


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str
    bold: bool = False
    starred: bool = False  # what a star means is for the table's note to say
    below: str = ""  # a second line, such as somebody else's number


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header; the first cell of a row is its name."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    words: Sequence[int] = (0,)  # columns of words, which begin at the left; numbers end at the right
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the header."""
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"a row of {len(row)} cells below a header of {len(self.header)}: {row}"
                )

    def cells(self) -> Iterator[list[Cell]]:
        """Yield the rows, every cell of them as a `Cell`."""
        for row in self.rows:
            yield [Cell(cell) if isinstance(cell, str) else cell for cell in row]
