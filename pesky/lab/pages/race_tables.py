"""The tables of a race, ours with the paper's numbers below: the same on every page."""

from collections.abc import Mapping

from pesky.lab import paper
from pesky.lab.benchmarks import METHOD_TITLES, METHODS
from pesky.lab.race.standings import Standing, without_result
from pesky.lab.runs.means import Part
from pesky.lab.runs.settings import settings_shown
from pesky.lab.tables.table import NOTHING, Cell, Table

__all__ = [
    "Standings",
    "costs_table",
    "counts_table",
    "errors_table",
    "missing",
    "settings_table",
]

Standings = Mapping[str, Mapping[str, Standing]]  # by benchmark, then by method

_RIVALS = tuple(method for method in METHODS if not method.startswith("vsgd"))
_HEADER = ("", *(METHOD_TITLES[method] for method in METHODS))


def errors_table(standings: Standings, part: Part) -> Table:
    """Return every benchmark's errors on the training or the test set: the paper's Tables 2 and 3."""
    rows = []
    for benchmark, of_methods in standings.items():
        published = (paper.TRAIN if part == "train" else paper.TEST).get(benchmark)
        name = Cell(benchmark, below="paper" if published else "")
        rows.append([name, *(_error(of_methods.get(one), part, published, one) for one in METHODS)])
    return Table(_HEADER, rows)


def _error(
    standing: Standing | None, part: Part, published: Mapping[str, float] | None, method: str
) -> Cell:
    number = None if standing is None else standing.error(part)
    below = "" if published is None else _shown(published.get(method))
    if number is None:
        return Cell(NOTHING, below=below)
    return Cell(str(number), number.bold, number.agrees is False, below)


def _shown(number: float | None) -> str:
    return NOTHING if number is None else f"{number:.2f}"


def counts_table(standings: Standings) -> Table:
    """Return how many settings of each method were compared."""
    rows = [
        [name, *(str(row[method].settings_tried) if method in row else NOTHING for method in METHODS)]
        for name, row in standings.items()
    ]
    return Table(_HEADER, rows)


def settings_table(standings: Standings) -> Table:
    """Return the settings of the rivals that won: the paper's Table 1."""
    rows = []
    for benchmark, of_methods in standings.items():
        published = paper.BEST_SETTINGS.get(benchmark)
        rows.append(
            [
                Cell(benchmark, below="paper" if published else ""),
                *(
                    Cell(
                        _settings(of_methods[method].settings if method in of_methods else None),
                        below="" if published is None else _settings(published.get(method)),
                    )
                    for method in _RIVALS
                ),
            ]
        )
    header = ("", *(METHOD_TITLES[method] for method in _RIVALS))
    return Table(header, rows, words=range(len(header)))


def _settings(settings: dict[str, str] | None) -> str:
    return settings_shown(settings) if settings else NOTHING


def costs_table(standings: Standings) -> Table:
    """Return what comparing the settings of each rival cost."""
    rows = [
        [
            benchmark,
            METHOD_TITLES[method],
            str(of_methods[method].settings_tried),
            f"{of_methods[method].tuning_samples / 1e6:.1f} million",
            f"{of_methods[method].tuning_seconds:.0f}",
        ]
        for benchmark, of_methods in standings.items()
        for method in _RIVALS
        if method in of_methods
    ]
    header = ("", "method", "settings, two runs each", "samples", "seconds of one core")
    return Table(header, rows, words=(0, 1))


def missing(standings: Standings) -> dict[str, list[str]]:
    """Return the titles of methods that have no test error yet, by benchmark."""
    absent = {name: without_result(name, of_methods) for name, of_methods in standings.items()}
    return {
        name: [METHOD_TITLES[method] for method in methods]
        for name, methods in absent.items()
        if methods
    }
