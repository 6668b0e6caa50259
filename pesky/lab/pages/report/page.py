"""One self-contained page from whatever rows there are: claim, tables, plots, figures."""

from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path

import pesky
from pesky.lab.benchmarks import BENCHMARKS, METHOD_TITLES, error_unit
from pesky.lab.pages.race_tables import Standings, costs_table, errors_table, missing, settings_table
from pesky.lab.pages.report.captions import FIGURES
from pesky.lab.pages.report.claim import claim
from pesky.lab.pages.report.marks import mark
from pesky.lab.pages.report.picture import html_figure
from pesky.lab.pages.report.scatter import scatter
from pesky.lab.race.recorded import Recorded, own_benchmarks
from pesky.lab.race.rows import Store
from pesky.lab.race.standings import standings
from pesky.lab.runs.means import Part
from pesky.lab.tables.html import html_note, html_table

__all__ = ["report_page"]

_ERRORS_NOTE = (
    "Mean ± standard error; below it the paper’s number. Bold: not different from the best of its row "
    "at p = 0.01 (Welch’s test). A star: more than 5 % and two standard errors from the paper’s. "
    "Percent; of CR the reconstruction error."
)
_SETTINGS_NOTE = "The best setting of each rival by two runs on the test set; below it the paper’s."


def report_page(
    store: Store, figures: Path | None = None, torch_store: Path | None = None, source: str = ""
) -> str:
    """Return the page as HTML.

    `figures` is a folder with SVG files of ``pesky figure``, `torch_store` what ``pesky torch-table``
    keeps its runs in, `source` what the page says it was made from, if that is not the store.
    """
    recorded = {name: Recorded(store, name) for name in BENCHMARKS} | own_benchmarks(store)
    recorded = {name: one for name, one in recorded.items() if one.winners()}
    tables = {name: {row.method: row for row in standings(one)} for name, one in recorded.items()}
    units = {name: error_unit(one.loss) for name, one in recorded.items()}
    resources = files("pesky.lab.pages.report")
    style = resources.joinpath("style.css").read_text(encoding="utf-8")
    script = resources.joinpath("hover.js").read_text(encoding="utf-8")
    body = "\n".join(
        (
            claim(tables, units),
            _errors("Error on the test set", tables, "test"),
            _errors("Error on the training set", tables, "train"),
            _tuning(tables),
            _plots(recorded, units),
            _figures(figures),
            _torch(torch_store),
            _missing(tables),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>pesky: the race</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n"
        f"<footer>Made by pesky {pesky.__version__} from {escape(source or store.path.name)}.</footer>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _errors(title: str, tables: Standings, part: Part) -> str:
    if not tables:
        return ""
    table = replace(errors_table(tables, part), title=title, note=_ERRORS_NOTE)
    return f"<h2>{title}</h2>{html_table(table)}"


def _tuning(tables: Standings) -> str:
    costs = replace(costs_table(tables), title="What tuning cost")
    if not costs.rows:
        return ""
    best = replace(settings_table(tables), title="What tuning found", note=_SETTINGS_NOTE)
    return f"<h2>{best.title}</h2>{html_table(best)}<h2>{costs.title}</h2>{html_table(costs)}"


def _plots(recorded: dict[str, Recorded], units: dict[str, str]) -> str:
    if not recorded:
        return ""
    plots = "".join(scatter(name, one, units[name]) for name, one in recorded.items())
    methods = dict.fromkeys(method for one in recorded.values() for method in one.methods)
    key = "".join(f"<li>{mark(method)}{escape(METHOD_TITLES[method])}</li>" for method in methods)
    note = (
        "Large: the best of each method. Point at one, or tap it, to see its settings. "
        "Settings that diverged or were cut are left out."
    )
    return (
        f"<h2>Every setting that was tried</h2>{html_note(note)}"
        f'<ul class="key">{key}</ul><div class="plots">{plots}</div>'
    )


def _figures(folder: Path | None) -> str:
    shown, absent = [], []
    for figure in FIGURES:
        path = None if folder is None else folder / f"{figure.name}.svg"
        if path is None or not path.is_file():
            absent.append(f"<li>{escape(figure.title)}: <code>{escape(figure.command)}</code></li>")
            continue
        narrow = path.with_name(f"{figure.name}-narrow.svg")
        shown.append(
            html_figure(
                figure.caption(path.parent),
                path.read_bytes(),
                narrow.read_bytes() if narrow.is_file() else None,
            )
        )
    text = "<h2>Figures of the paper</h2>" + "".join(shown)
    if absent:
        text += f'{html_note("Not drawn yet:")}<ul class="note">{"".join(absent)}</ul>'
    return text


def _torch(store: Path | None) -> str:
    if store is None:
        note = "Nothing has been run: <code>pesky torch-table</code>."
        return f'<h2>In PyTorch</h2><p class="note">{note}</p>'
    from pesky.lab.pages.report.torch_section import torch_section  # needs PyTorch

    return torch_section(store)


def _missing(tables: Standings) -> str:
    absent = missing({name: tables.get(name, {}) for name in BENCHMARKS})
    if not absent:
        return ""
    lines = (
        f"<li>{escape(name)}: {', '.join(methods)} <code>pesky race {escape(name)}</code></li>"
        for name, methods in absent.items()
    )
    return f'<h2>Not run yet</h2><ul class="note">{"".join(lines)}</ul>'
