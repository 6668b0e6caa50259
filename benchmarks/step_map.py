"""How one settled `VSGD.minimize` goes through the files of `pesky/torch`.

Run: python benchmarks/step_map.py [--calls]. A small network is trained until steps have settled; then
the Python calls of one step that measures everything are counted, with the files that they enter and how
often one file follows another. Calls that lead up, from a lower stage to a higher one, are listed: there
should be none.
"""

import argparse
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pesky.torch
from pesky.torch import VSGD

PACKAGE = Path(pesky.torch.__file__).parent
SETTLED = 400
STAGES = (
    "vsgd.py",
    "stepping.py",
    "progress.py",
    "explain.py",
    "checkpoints.py",
    "step",
    "passes",
    "loss",
    "curvature",
)


def stage_of(file: str) -> int:
    """Return how far down a file is; an older tree knows no stages."""
    return STAGES.index(name) if (name := file.split("/")[0]) in STAGES else len(STAGES)


def file_of(frame: Any) -> str | None:
    """Return a frame's file, if it belongs to the package."""
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else None


def calls_of_a_step() -> list[tuple[str | None, str, str]]:
    """Return the file of the caller, the file and the name of each call in a settled measuring step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2))
    optimizer = VSGD(model.parameters())
    calls: list[tuple[str | None, str, str]] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        file = file_of(frame) if event == "call" else None
        if file is None:
            return
        caller = frame.f_back
        while caller is not None and file_of(caller) is None:
            caller = caller.f_back
        calls.append((None if caller is None else file_of(caller), file, frame.f_code.co_name))

    while optimizer.counters["moves"] < SETTLED or optimizer.counters["moves"] % 4:
        take_step(model, optimizer)
    x = torch.randn(64, 20)
    closure = loss_of(model, x)
    sys.setprofile(note)
    try:
        optimizer.minimize(closure)
    finally:
        sys.setprofile(None)
    return calls


def loss_of(model: nn.Module, x: torch.Tensor) -> Any:
    return lambda: nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())


def take_step(model: nn.Module, optimizer: VSGD) -> None:
    optimizer.minimize(loss_of(model, torch.randn(64, 20)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", action="store_true", help="list every call")
    asked = parser.parse_args()
    calls = calls_of_a_step()
    apart = [file for _, file, _ in calls if not file.startswith("curvature/")]
    changes = sum(one != other for (_, one, _), (_, other, _) in itertools.pairwise(calls))
    print(f"{len(calls)} calls, {len({file for _, file, _ in calls})} files, {changes} changes of file")
    print(f"outside curvature/: {len(apart)} calls, {len(set(apart))} files")
    for file, count in sorted(Counter(apart).items()):
        print(f"  {file:26} {count:4} calls")
    upwards = {
        f"{caller} -> {file} {name}"
        for caller, file, name in calls
        if caller is not None and stage_of(file) < stage_of(caller)
    }
    print(f"calls upwards: {len(upwards)}", *sorted(upwards), sep="\n  ")
    if asked.calls:
        print(*(f"{file}: {name}" for _, file, name in calls), sep="\n")


if __name__ == "__main__":
    main()
