"""One self-contained page from whatever a store holds: claim, tables, plots, figures."""

from html import escape
from importlib.resources import files
from pathlib import Path

import pesky
from pesky.lab import paper
from pesky.lab.benchmarks import BENCHMARKS, METHODS, error_unit
from pesky.lab.race.grids import settings_shown
from pesky.lab.race.recorded import Recorded, own_benchmarks
from pesky.lab.race.store import Store
from pesky.lab.race.table import Cell, Standing, standings, without_result
from pesky.lab.race.tuning import Part
from pesky.lab.report import html
from pesky.lab.report.captions import FIGURES
from pesky.lab.report.scatter import mark, scatter

__all__ = ["report_page"]

_VSGD = ("vsgd-l", "vsgd-b", "vsgd-g", "vsgd-robust")


def report_page(store: Store, figures: Path | None = None, torch_store: Path | None = None) -> str:
    """Return the page as HTML.

    `figures` is a folder with SVG files of ``pesky figure``, `torch_store` what ``pesky torch-table``
    keeps its runs in.
    """
    recorded = {name: Recorded(store, name) for name in BENCHMARKS} | own_benchmarks(store)
    recorded = {name: one for name, one in recorded.items() if one.winners()}
    tables = {name: {row.method: row for row in standings(one)} for name, one in recorded.items()}
    units = {name: error_unit(one.loss) for name, one in recorded.items()}
    resources = files("pesky.lab.report")
    style = resources.joinpath("style.css").read_text(encoding="utf-8")
    script = resources.joinpath("hover.js").read_text(encoding="utf-8")
    body = "\n".join(
        (
            _claim(tables, units),
            _errors("Error on the test set", tables, "test"),
            _errors("Error on the training set", tables, "train"),
            _settings(tables),
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
        f"<footer>Made by pesky {pesky.__version__} from {escape(store.path.name)}.</footer>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


Tables = dict[str, dict[str, Standing]]


def _claim(tables: Tables, units: dict[str, str]) -> str:
    items = []
    for name, rows in tables.items():
        untuned = [row for row in rows.values() if row.method in _VSGD and row.test is not None]
        rivals = [row for row in rows.values() if row.method not in _VSGD and row.test is not None]
        if not untuned:
            continue
        ours = ", ".join(f"{row.method} {_plain(row.test, units[name])}" for row in untuned)
        text = f"<b>{escape(name)}</b>untuned: {escape(ours)}"
        if rivals:
            best = min(rivals, key=lambda row: row.test.mean if row.test else 0.0)
            tried = sum(row.settings_tried for row in rivals)
            text += (
                f"<br>best of {tried:,} tuned settings: {escape(best.method)} "
                f"({escape(settings_shown(best.settings))}) {escape(_plain(best.test, units[name]))}"
            )
        items.append(f"<li>{text}</li>")
    intro = (
        "<h1>One untuned method against hundreds of tuned ones</h1>"
        '<p class="lead">vSGD sets its own learning rates. Its rivals were tuned over the grids of the '
        "paper “No More Pesky Learning Rates”, on the test set, as the paper did. Test errors after 6 "
        "epochs, one sample at a time, mean of fresh runs:</p>"
    )
    if not items:
        return (
            intro + '<p class="note">Nothing has been raced yet. Run <code>pesky race digits</code>.</p>'
        )
    return intro + f'<ul class="claims">{"".join(items)}</ul>'


def _plain(cell: Cell | None, unit: str) -> str:
    return "–" if cell is None else f"{cell.mean:.2f} {unit}"


def _errors(title: str, tables: Tables, part: Part) -> str:
    if not tables:
        return ""
    rows = []
    for name, standings_of in tables.items():
        cells = []
        for method in METHODS:
            row = standings_of.get(method)
            cells.append(_cell(None if row is None else row.cell(part)))
        rows.append(f"<tr><td>{escape(name)}</td>{''.join(cells)}</tr>")
    note = (
        '<p class="note">Mean ± standard error; below it the paper’s number. Bold: not different from '
        "the best of its row at p = 0.01 (Welch’s test). Percent; of CR the reconstruction error.</p>"
    )
    return f"<h2>{title}</h2>{html.table(('', *METHODS), rows)}{note}"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td>–</td>"
    text = f"<b>{cell}</b>" if cell.bold else str(cell)
    if cell.paper is None:
        return f"<td>{text}</td>"
    kind = ' class="miss"' if cell.agrees is False else ""
    return f"<td{kind}>{text}<small>paper {cell.paper:.2f}</small></td>"


def _settings(tables: Tables) -> str:
    rows = []
    for name, standings_of in tables.items():
        for method in METHODS:
            row = standings_of.get(method)
            if row is None or method in _VSGD:
                continue
            published = paper.BEST_SETTINGS.get(name, {}).get(method)
            theirs = "–" if published is None else settings_shown(published)
            cells = (
                *(name, method, settings_shown(row.settings), theirs, f"{row.settings_tried}"),
                *(f"{row.tuning_samples / 1e6:.1f} million", f"{row.tuning_seconds:.0f} s"),
            )
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    if not rows:
        return ""
    header = ("", "method", "best setting", "paper’s", "tried", "samples", "time of one core")
    return f"<h2>What tuning found, and what it cost</h2>{html.table(header, rows)}"


def _plots(recorded: dict[str, Recorded], units: dict[str, str]) -> str:
    if not recorded:
        return ""
    plots = "".join(scatter(name, one, units[name]) for name, one in recorded.items())
    methods = dict.fromkeys(method for one in recorded.values() for method in one.methods)
    key = "".join(f"<li>{mark(method)}{escape(method)}</li>" for method in methods)
    return (
        "<h2>Every setting that was tried</h2>"
        '<p class="note">Large: the best of each method. Point at one, or tap it, to see its settings. '
        "Settings that diverged or were cut are left out.</p>"
        f'<ul class="key">{key}</ul><div class="plots">{plots}</div>'
    )


def _figures(folder: Path | None) -> str:
    shown, absent = [], []
    for figure in FIGURES:
        path = None if folder is None else folder / f"{figure.name}.svg"
        if path is None or not path.is_file():
            absent.append(f"<li>{escape(figure.title)}: <code>{escape(figure.command)}</code></li>")
            continue
        shown.append(html.figure(figure.caption(path.parent), path.read_bytes()))
    text = "<h2>Figures of the paper</h2>" + "".join(shown)
    if absent:
        text += f'<p class="note">Not drawn yet:</p><ul class="note">{"".join(absent)}</ul>'
    return text


def _torch(store: Path | None) -> str:
    if store is None:
        note = "Nothing has been run: <code>pesky torch-table</code>."
        return f'<h2>In PyTorch</h2><p class="note">{note}</p>'
    from pesky.lab.report.torch_section import torch_section  # needs PyTorch

    return torch_section(store)


def _missing(tables: Tables) -> str:
    lines = []
    for name in BENCHMARKS:
        absent = without_result(name, tables.get(name, {}))
        if absent:
            lines.append(
                f"<li>{escape(name)}: {', '.join(absent)} <code>pesky race {escape(name)}</code></li>"
            )
    if not lines:
        return ""
    return f'<h2>Not run yet</h2><ul class="note">{"".join(lines)}</ul>'
