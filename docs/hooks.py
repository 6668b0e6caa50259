"""What `make docs` adds to Markdown: the page of the command line, made from the command itself."""

from collections.abc import Iterator
from typing import Any

import typer

from pesky.cli import app

_PLACE = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put all commands where a page wants them."""
    if _PLACE not in markdown:
        return markdown
    return markdown.replace(_PLACE, "\n".join(_described(typer.main.get_command(app), "pesky")))


def _described(command: Any, name: str) -> Iterator[str]:
    """Yield the lines about a command, or about each one of a group."""
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from _described(inner, f"{name} {part}")
        return
    yield from (f"## {name}", "", command.help, "")
    yield from ("| option | meaning |", "|---|---|")
    context = command.make_context(name, [], resilient_parsing=True)
    for parameter in command.params:
        spelling, meaning = parameter.get_help_record(context)
        meaning = meaning.replace("|", "\\|")  # which in code is no end of a cell
        yield f"| `{spelling}` | {meaning} |"
    yield ""
