"""The tree of the package in CONTRIBUTING.md, a line for each file: python -m tests.tree writes it anew.

What stands behind a file is the first sentence of its docstring, so that there is one place to change.
"""

import ast
import re
from pathlib import Path

import pesky

ROOT = Path(pesky.__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- the tree, by python -m tests.tree -->\n```text\n", "```\n<!-- end of the tree -->\n"
COLUMN = 28  # where sentences begin


def first_sentence(path):
    """Return the first sentence of a module's docstring, without its full stop."""
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert words, f"{path} has no docstring"
    paragraph = " ".join(words.split("\n\n")[0].split())
    return re.split(r"(?<=[A-Za-z0-9\"`)])\.(?: |$)", paragraph)[0].removesuffix("::").replace("``", "`")


def lines_of(folder, depth=0):
    """Yield a line for a folder, then for what is in it: files first."""
    yield line("  " * depth + folder.name + "/", first_sentence(folder / "__init__.py"))
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield line("  " * (depth + 1) + path.name, first_sentence(path))
    for below in sorted(folder.glob("*/__init__.py")):
        yield from lines_of(below.parent, depth + 1)


def line(name, sentence):
    return f"{name:<{COLUMN}}{sentence}"


def tree():
    return "\n".join(lines_of(ROOT / "pesky")) + "\n"


def with_tree(page):
    """Return the page with the tree as it is now."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + tree() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_tree(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
