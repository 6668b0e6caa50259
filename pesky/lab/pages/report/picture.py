"""Pictures that are part of a page, which so needs no network."""

import base64
from html import escape

__all__ = ["html_figure"]


def html_figure(caption: str, wide: bytes, narrow: bytes | None = None) -> str:
    """Return a picture that is part of the page; screens as narrow as a phone show `narrow`."""
    image = f'<img alt="{escape(caption)}" src="{_source(wide)}">'
    if narrow is not None:
        source = f'<source media="(max-width: 40rem)" srcset="{_source(narrow)}">'
        image = f"<picture>{source}{image}</picture>"
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _source(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
