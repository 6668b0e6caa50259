"""The Python that pages show, and what it says that it prints."""

import re


def examples_in(page):
    """Return the page's blocks of Python."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def promised_by(example):
    """Return the lines that an example says its prints write."""
    return re.findall(r"^print\(.*\)\s+# (.*)$", example, flags=re.MULTILINE)
