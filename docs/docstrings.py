"""How docstrings are read for the site: what is Python's habit there is made Markdown's."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", flags=re.MULTILINE)


class AsMarkdown(griffe.Extension):
    """Makes examples blocks of code, and `::` before a block of code a colon."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one object's docstring; that of `__init__` says nothing which its class does not."""
        if obj.docstring is None:
            return
        if obj.name == "__init__" and obj.is_function:
            obj.docstring = None
            return
        text = obj.docstring.value.replace("::\n", ":\n")
        obj.docstring.value = _EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", text)
