"""Which runs were unstable, kept on disk."""

import json
import os
import threading
from pathlib import Path

from pesky.errors import InputError
from pesky.files import atomic_path
from pesky.lab.figures.critical.setups import Setup
from pesky.lab.figures.critical.stability import DEFINITION, is_unstable
from pesky.lab.runs.threads import in_threads
from pesky.online import NUMERICS_VERSION

__all__ = ["Outcomes"]


class Outcomes:
    """Which runs were unstable: by setup and C, in the order of seeds, on disk at once."""

    def __init__(self, path: Path, runs: int, jobs: int | None = None) -> None:
        """Read what is known; `runs` are the most asked for of a C, done `jobs` at a time."""
        self._path = path
        self._runs = runs
        self._jobs = jobs or os.cpu_count() or 1
        # What a run's outcome depends on besides its setup, its C and its seed.
        self._identity = {"definition": DEFINITION, "numerics": NUMERICS_VERSION}
        self._known: dict[str, dict[str, list[bool]]] = {}
        if path.exists():
            self._known = self._read()

    def _read(self) -> dict[str, dict[str, list[bool]]]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            identity = {name: content[name] for name in self._identity}
            known = {
                str(setup): {str(factor): [bool(run) for run in runs] for factor, runs in by_c.items()}
                for setup, by_c in content["unstable"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{self._path} is damaged; remove it or name another folder") from None
        if identity != self._identity:
            raise InputError(
                f"{self._path} is of another version of pesky; remove it or name another folder"
            )
        return known

    def get(self, setup: Setup, factor: float, seed: int) -> bool:
        """Return the outcome of a run, which is made if need be; seeds must come in order.

        The next seeds are done beside it, though the search may end before them.
        """
        known = self._known.setdefault(setup.name, {}).setdefault(f"{factor:.6g}", [])
        if seed == len(known):

            def outcome(seed: int, stop: threading.Event) -> bool:
                return is_unstable(setup, factor, seed, stop)

            known += in_threads(outcome, range(seed, min(seed + self._jobs, self._runs)), self._jobs)
            with atomic_path(self._path) as temporary:
                text = json.dumps({**self._identity, "unstable": self._known}, indent=1)
                temporary.write_text(text, encoding="utf-8")
        return known[seed]
