"""The study of the critical C: from setups to a picture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pesky.errors import check_count
from pesky.lab.benchmarks import L2
from pesky.lab.figures.critical.drawing import draw, plain, shown
from pesky.lab.figures.critical.outcomes import Outcomes
from pesky.lab.figures.critical.search import CRITICAL, Found, grid, search
from pesky.lab.figures.critical.setups import Only, Setup, chosen_setups
from pesky.lab.figures.critical.stability import DEFINITION
from pesky.lab.figures.picture import Picture
from pesky.rule import slow_start_factor

__all__ = ["make"]


def make(
    work: Path,
    *,
    runs: int = 20,
    quick: bool = False,
    only: Only = "all",
    jobs: int | None = None,
    folder: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Picture:
    """Search the critical C of every setup and draw it against d.

    Runs are done `jobs` at a time, or one a core; how many does not matter to the numbers. Outcomes are
    noted in ``critical-runs.json`` in the folder `work` as they come, so that after a kill the same call
    goes on. `folder` is where the data is looked for.
    """
    check_count("runs", runs)
    per_decade = 1 if quick else 2
    setups = chosen_setups(quick, only, folder)
    outcomes = Outcomes(work / "critical-runs.json", runs, jobs)
    rows = []
    for setup in setups:
        found = _critical(setup, outcomes, runs, per_decade, say)
        rows.append(_row(setup, found))
        say(f"{setup.name}: critical C {shown(rows[-1])}")
    numbers: dict[str, Any] = {
        "definition": DEFINITION,
        "critical": CRITICAL,
        "l2": L2,
        "runs": runs,
        "factor_between_grid_points": 10 ** (1 / per_decade),
        "setups": rows,
    }
    return draw(numbers)


def _critical(
    setup: Setup, outcomes: Outcomes, runs: int, per_decade: int, say: Callable[[str], None]
) -> Found:
    def unstable(factor: float, seed: int) -> bool:
        if seed == 0:
            say(f"{setup.name}: C = {plain(factor)}, at most {runs} runs of {setup.horizon} samples")
        return outcomes.get(setup, factor, seed)

    return search(unstable, grid(setup.parameters, per_decade), runs)


def _row(setup: Setup, found: Found) -> dict[str, Any]:
    return {
        "name": setup.name,
        "layers": list(setup.benchmark.layers),
        "parameters": setup.parameters,
        "horizon": setup.horizon,
        "critical": found.factor,
        "status": found.status,
        "papers_choice": slow_start_factor(setup.parameters),
        "tried": [
            {"C": trial.factor, "unstable": trial.unstable, "runs": trial.runs} for trial in found.trials
        ],
    }
