"""``pesky quadratic``: any methods on any noisy quadratic."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from pesky.cli.output import AsJson, print_json, print_methods, ready_folder, screen, write_text
from pesky.errors import InputError, check_count
from pesky.lab.comparison import method_from_text, summary
from pesky.quadratic import NoisyQuadratic, Trace, simulate

__all__ = ["quadratic_command"]

_LIST = "one number, or one a parameter: 1,10"


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} must be numbers with commas between; got {text!r}") from None


def quadratic_command(
    methods: Annotated[
        str,
        typer.Option(
            help="With commas between: vsgd-l, vsgd-b, vsgd-g, oracle-l, oracle-g, and "
            "sgd:0.2, sgd:0.2/t, sgd:0.2/(1+0.01t).",
        ),
    ] = "vsgd-l,oracle-l,sgd:1,sgd:0.2,sgd:1/t,sgd:0.2/t",
    curvature: Annotated[str, typer.Option(help=f"Curvature h: {_LIST}.")] = "1",
    noise: Annotated[str, typer.Option(help=f"Noise sigma: {_LIST}.")] = "1",
    optimum: Annotated[str, typer.Option(help=f"Optimum: {_LIST}.")] = "0",
    start: Annotated[str, typer.Option(help=f"Starting point: {_LIST}.")] = "5",
    blocks: Annotated[str, typer.Option(help="Sizes of vsgd-b's blocks: 2,1.")] = "",
    change_every: Annotated[int, typer.Option(help="Steps between changes; 0: none.")] = 0,
    jump: Annotated[float, typer.Option(help="How far the optimum moves at a change.")] = 0.0,
    noise_factor: Annotated[float, typer.Option(help="Noise is times this, then back.")] = 1.0,
    curvature_factor: Annotated[float, typer.Option(help="Curvature likewise.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Steps taken.")] = 1000,
    runs: Annotated[int, typer.Option(help="Independent runs.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for quadratic.json and quadratic.npz (all traces); made if missing.",
        ),
    ] = None,
) -> None:
    """Compare methods on a noisy quadratic, stationary or changing."""
    problem = NoisyQuadratic(
        curvature=_numbers("--curvature", curvature),
        noise=_numbers("--noise", noise),
        optimum=_numbers("--optimum", optimum),
        start=_numbers("--start", start),
        change_every=change_every,
        optimum_jump=jump,
        noise_factor=noise_factor,
        curvature_factor=curvature_factor,
    )
    sizes = [check_count("--blocks", size) for size in _numbers("--blocks", blocks)] if blocks else []
    contestants = [method_from_text(text, sizes) for text in methods.split(",")]
    folder = ready_folder(out) if out else None
    progress = Console(stderr=True)
    traces = [
        simulate(problem, method, steps=steps, runs=runs, seed=seed)
        for method in track(
            contestants,
            "simulating",
            console=progress,
            transient=True,
            disable=not progress.is_terminal,
        )
    ]
    result: dict[str, Any] = {
        "dimension": problem.dimension,
        "steps": steps,
        "runs": runs,
        "seed": seed,
        "methods": summary(traces),
    }
    if folder:
        result["files"] = _write_traces(folder, traces, result)
    if as_json:
        print_json(result)
        return
    print_methods(f"Noisy quadratic, {steps} steps, {runs} runs", result["methods"])
    if folder:
        screen.print("wrote " + ", ".join(result["files"]), soft_wrap=True, highlight=False)


def _write_traces(folder: Path, traces: list[Trace], result: dict[str, Any]) -> list[str]:
    arrays: dict[str, Any] = {}
    for trace in traces:
        arrays[f"{trace.name}: excess loss"] = trace.excess_loss
        arrays[f"{trace.name}: rate"] = trace.rate
    archive, numbers = folder / "quadratic.npz", folder / "quadratic.json"
    temporary = folder / ".quadratic.npz"
    try:
        np.savez(temporary, **arrays)
        temporary.replace(archive)
    finally:
        temporary.unlink(missing_ok=True)
    write_text(numbers, json.dumps(result, indent=2, allow_nan=False) + "\n")
    return [str(archive), str(numbers)]
