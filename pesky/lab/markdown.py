"""Tables for pages that are made by commands."""

from collections.abc import Iterable

__all__ = ["markdown_table"]


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table with a line at its end.

    >>> print(markdown_table(["", "a"], [["row", "1"]]))
    |  | a |
    |---|---|
    | row | 1 |
    <BLANKLINE>
    """
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
