"""The report's first words: untuned vSGD beside the best of its tuned rivals, on every benchmark."""

from html import escape

from pesky.lab.benchmarks import GRANULARITIES, METHOD_TITLES, ROBUST
from pesky.lab.pages.race_tables import Standings
from pesky.lab.race.standings import Standing
from pesky.lab.runs.settings import settings_shown

__all__ = ["claim"]

_UNTUNED = (*GRANULARITIES, ROBUST)
_INTRODUCTION = (
    "<h1>One untuned method against hundreds of tuned ones</h1>"
    '<p class="lead">vSGD sets its own learning rates. Its rivals were tuned over the grids of the '
    "paper “No More Pesky Learning Rates”, on the test set, as the paper did. Test errors after 6 "
    "epochs, one sample at a time, mean of fresh runs:</p>"
)
_NOTHING = '<p class="note">Nothing has been raced yet. Run <code>pesky race digits</code>.</p>'


def claim(tables: Standings, units: dict[str, str]) -> str:
    """Return a card for each benchmark on which any form of vSGD has a result."""
    cards = "".join(_card(name, list(rows.values()), units[name]) for name, rows in tables.items())
    return _INTRODUCTION + (f'<ul class="claims">{cards}</ul>' if cards else _NOTHING)


def _card(name: str, rows: list[Standing], unit: str) -> str:
    ranked = [(row.test.mean, row) for row in rows if row.test is not None]
    untuned = [(error, row) for error, row in ranked if row.method in _UNTUNED]
    rivals = [(error, row) for error, row in ranked if row.method not in _UNTUNED]
    if not untuned:
        return ""
    lines = [
        "<dt>untuned</dt>",
        *(_line(METHOD_TITLES[row.method], error, unit) for error, row in untuned),
    ]
    if rivals:
        tried = sum(row.settings_tried for _, row in rivals)
        error, best = min(rivals, key=lambda rival: rival[0])
        title = f"{METHOD_TITLES[best.method]} ({settings_shown(best.settings)})"
        settings = f"{tried:,} tuned setting{'s' * (tried != 1)}"
        lines += [f"<dt>best of {settings}</dt>", _line(title, error, unit)]
    return f"<li><b>{escape(name)}</b><dl>{''.join(lines)}</dl></li>"


def _line(title: str, error: float, unit: str) -> str:
    return f"<dd>{escape(title)} <span>{error:.2f} {escape(unit)}</span></dd>"
