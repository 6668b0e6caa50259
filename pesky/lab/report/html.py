"""Small pieces of HTML that the report's sections are made of."""

import base64
from collections.abc import Iterable
from html import escape

__all__ = ["figure", "table"]


def table(header: Iterable[str], rows: Iterable[str]) -> str:
    """Return a table that scrolls by itself where it is too wide; rows are HTML."""
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def figure(caption: str, svg: bytes) -> str:
    """Return a picture that is part of the page."""
    content = base64.b64encode(svg).decode()
    image = f'<img alt="{escape(caption)}" src="data:image/svg+xml;base64,{content}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"
