"""Tables and notes in HTML."""

from html import escape

from pesky.lab.tables.table import Cell, Table

__all__ = ["html_note", "html_table"]


def html_table(table: Table) -> str:
    """Return a table that scrolls by itself where it is too wide, and its note."""
    head = "".join(
        f'<th scope="col"{_kind(table, column)}>{escape(text)}</th>'
        for column, text in enumerate(table.header)
    )
    body = "".join(f"<tr>{_row(table, row)}</tr>" for row in table.cells())
    name = f' aria-label="{escape(table.title)}"' if table.title else ""
    return (
        f'<div class="wide" role="region" tabindex="0"{name}>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        + (html_note(table.note) if table.note else "")
    )


def html_note(text: str) -> str:
    """Return a paragraph of small print."""
    return f'<p class="note">{escape(text)}</p>'


def _row(table: Table, row: list[Cell]) -> str:
    name, *others = (_content(cell) for cell in row)
    cells = (f"<td{_kind(table, column)}>{text}</td>" for column, text in enumerate(others, start=1))
    return f'<th scope="row">{name}</th>' + "".join(cells)


def _kind(table: Table, column: int) -> str:
    return ' class="words"' if column in table.words and column > 0 else ""


def _content(cell: Cell) -> str:
    text = escape(cell.text)
    text = f"<b>{text}</b>" if cell.bold else text
    text += '<span class="star">*</span>' if cell.starred else ""
    return text + (f"<small>{escape(cell.below)}</small>" if cell.below else "")
