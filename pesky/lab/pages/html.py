"""Tables, notes and pictures in HTML, for pages that need no network."""

import base64
from html import escape

from pesky.lab.pages.table import Cell, Table

__all__ = ["html_figure", "html_note", "html_table"]


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


def html_figure(caption: str, wide: bytes, narrow: bytes | None = None) -> str:
    """Return a picture that is part of the page; screens as narrow as a phone show `narrow`."""
    image = f'<img alt="{escape(caption)}" src="{_source(wide)}">'
    if narrow is not None:
        source = f'<source media="(max-width: 40rem)" srcset="{_source(narrow)}">'
        image = f"<picture>{source}{image}</picture>"
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


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


def _source(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
