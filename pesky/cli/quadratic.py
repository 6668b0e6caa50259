"""``pesky quadratic``: any methods on any noisy quadratic."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from pesky.cli.output import (
    AsJson,
    print_json,
    print_methods,
    print_written,
    ready_folder,
    write_json,
)
from pesky.errors import InputError, check_count
from pesky.files import atomic_path
from pesky.lab.comparison import compare, methods_from_text, summary
from pesky.quadratic import VSGD, Method, NoisyQuadratic, Trace

__all__ = ["quadratic_command"]

_TRACES, _NUMBERS = "quadratic.npz", "quadratic.json"
_LIST = "one number, or one a parameter: 1,10"


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
    change_every: Annotated[int, typer.Option(help="Steps between changes; 0: none.")] = 0,
    jump: Annotated[
        float,
        typer.Option(help="How far each coordinate of the optimum then moves, up or down."),
    ] = 0.0,
    noise_factor: Annotated[float, typer.Option(help="Noise is times this, then back.")] = 1.0,
    curvature_factor: Annotated[float, typer.Option(help="Curvature likewise.")] = 1.0,
    blocks: Annotated[str | None, typer.Option(help="Sizes of vsgd-b's blocks: 2,1.")] = None,
    estimate_curvature: Annotated[
        bool, typer.Option("--estimate-curvature", help="vsgd averages h instead of knowing it.")
    ] = False,
    slow_start: Annotated[
        float, typer.Option(help="vsgd's C: its first v and estimated h are times this.")
    ] = 1.0,
    init_samples: Annotated[int, typer.Option(help="Samples vsgd averages before step 1.")] = 10,
    steps: Annotated[int, typer.Option(help="Steps taken.")] = 1000,
    runs: Annotated[int, typer.Option(help="Independent runs.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    as_json: AsJson = False,
    out: Annotated[
        str | None,
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
    sizes = [] if blocks is None else [check_count("blocks", x) for x in _numbers("--blocks", blocks)]
    adaptive = VSGD(
        curvature="estimated" if estimate_curvature else "known",
        slow_start=slow_start,
        init_samples=init_samples,
    )
    contestants = methods_from_text(methods, blocks=sizes, adaptive=adaptive)
    folder = None if out is None else ready_folder(out, _TRACES, _NUMBERS)
    traces = compare(problem, contestants, steps=steps, runs=runs, seed=seed, progress=_with_bar)
    result: dict[str, Any] = {
        "problem": _parameters(problem),
        "vsgd": {
            "blocks": sizes,
            "curvature": adaptive.curvature,
            "slow_start": slow_start,
            "init_samples": init_samples,
        },
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
        print_written(result["files"])


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} must be numbers with commas between; got {text!r}") from None


def _parameters(problem: NoisyQuadratic) -> dict[str, Any]:
    values = {field.name: getattr(problem, field.name) for field in fields(problem)}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def _with_bar(methods: Sequence[Method]) -> Iterable[Method]:
    screen = Console(stderr=True)
    return track(methods, "simulating", console=screen, transient=True, disable=not screen.is_terminal)


def _write_traces(folder: Path, traces: list[Trace], result: dict[str, Any]) -> list[str]:
    arrays: dict[str, Any] = {}
    for trace in traces:
        arrays[f"{trace.name}: excess loss"] = trace.excess_loss
        arrays[f"{trace.name}: rate"] = trace.rate
    archive, numbers = folder / _TRACES, folder / _NUMBERS
    with atomic_path(archive) as temporary:
        np.savez(temporary, **arrays)
    write_json(numbers, result)
    return [str(archive), str(numbers)]
