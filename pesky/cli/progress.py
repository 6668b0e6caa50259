"""A bar with a line below it, for work of many runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

__all__ = ["live_bar"]


@contextmanager
def live_bar(title: str, line: Callable[[], str]) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what shows how many runs are done, of how many; None if nobody can see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task(escape(title))

    def view() -> Table:
        table = Table.grid()
        table.add_row(bar)
        table.add_row(line())
        return table

    with Live(view(), console=console, transient=True, refresh_per_second=4) as live:

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            live.update(view())

        yield show
