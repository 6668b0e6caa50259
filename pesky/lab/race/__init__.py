"""The race: one untuned vSGD against the best of hundreds of tuned rivals."""

from pesky.lab.race.contest import Contest, Interrupted, Select
from pesky.lab.race.grids import GRIDS, Grid, listed_methods
from pesky.lab.race.recorded import Recorded
from pesky.lab.race.runner import Progress, Race
from pesky.lab.race.store import Row, RunKey, Store

__all__ = [
    "GRIDS",
    "Contest",
    "Grid",
    "Interrupted",
    "Progress",
    "Race",
    "Recorded",
    "Row",
    "RunKey",
    "Select",
    "Store",
    "listed_methods",
]
