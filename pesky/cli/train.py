"""``pesky train``: one method on one benchmark, a few seeds."""

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pesky.cli.options import DataFolder, Jobs
from pesky.cli.output import AsJson, print_json, print_written, ready_folder, write_json
from pesky.errors import InputError, check_count
from pesky.lab import paper
from pesky.lab.benchmarks import BENCHMARKS, METHODS, Benchmark, method_named
from pesky.lab.plain import finite_or_none

if TYPE_CHECKING:
    from pesky.lab.runs import EpochReport, RunResult

__all__ = ["train_command"]


def train_command(
    benchmark: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}.")],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "vsgd-l",
    seeds: Annotated[int, typer.Option(help="Runs, from seeds 0, 1, ...")] = 1,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 6,
    jobs: Jobs = 0,
    eta0: Annotated[str | None, typer.Option(help="Of the rivals: the rate, such as 3e-2.")] = None,
    gamma: Annotated[
        str | None, typer.Option(help="Of sgd: decay, in 1/(training samples), such as 1/2.")
    ] = None,
    mu: Annotated[str | None, typer.Option(help="Of smd: the meta-learning rate.")] = None,
    tau: Annotated[str | None, typer.Option(help="Of amari, almeida, smd: memory.")] = None,
    slow_start: Annotated[float | None, typer.Option(help="Of vsgd: C, else d/10.")] = None,
    init_samples: Annotated[
        int | None, typer.Option(help="Of vsgd: n_0, else a thousandth of the data.")
    ] = None,
    curvature_every: Annotated[int, typer.Option(help="Of vsgd: updates a bbprop pass.")] = 1,
    dialect: Annotated[
        Literal["paper", "literal"], typer.Option(help="Of vsgd: how to read the slow start.")
    ] = "paper",
    data: DataFolder = None,
    as_json: AsJson = False,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder for numbers, traces and networks."),
    ] = None,
) -> None:
    """Train a benchmark's network with one method; rivals default to the paper's best settings."""
    from pesky.lab.runs import run_seeds

    chosen = BENCHMARKS.get(benchmark)
    if chosen is None:
        raise InputError(f"unknown benchmark {benchmark!r}; there are {', '.join(BENCHMARKS)}")
    check_count("--seeds", seeds)
    check_count("--epochs", epochs)
    check_count("--jobs", jobs, least=0)
    settings = _settings(benchmark, method, {"eta0": eta0, "gamma": gamma, "mu": mu, "tau": tau})
    options: dict[str, Any] = {}
    if method.startswith("vsgd"):
        options = {
            "slow_start": slow_start,
            "init_samples": init_samples,
            "curvature_every": curvature_every,
            "dialect": dialect,
        }
    method_named(method, settings, 1, **options)  # what is wrong with it is said before reading data
    folder = ready_folder(out) if out is not None else None
    task = chosen.task(data)
    made = method_named(method, settings, len(task.train_inputs), **options)

    def report(epoch: "EpochReport") -> None:
        print(
            f"{benchmark} {method} seed {epoch.seed} epoch {epoch.epoch}/{epochs}: "
            f"loss {epoch.loss:.4f}, test {_error(chosen, epoch.test)}",
            flush=True,
        )

    results = run_seeds(
        chosen,
        task,
        made,
        seeds=seeds,
        epochs=epochs,
        jobs=jobs or None,
        report=None if as_json else report,
    )
    numbers = {
        "benchmark": benchmark,
        "method": method,
        "settings": settings,
        "epochs": epochs,
        "runs": [result.numbers() for result in results],
        "mean": {
            "train": finite_or_none(statistics.fmean(result.train for result in results)),
            "test": finite_or_none(statistics.fmean(result.test for result in results)),
        },
        "paper": {
            "train": paper.published_error("train", benchmark, method, epochs),
            "test": paper.published_error("test", benchmark, method, epochs),
        },
    }
    files = _write(folder, numbers, results) if folder else []
    if as_json:
        print_json({**numbers, "files": files})
        return
    _summarise(chosen, numbers)
    if files:
        print_written(files)


def _settings(benchmark: str, method: str, given: dict[str, str | None]) -> dict[str, str]:
    settings = {name: text for name, text in given.items() if text is not None}
    if settings or method not in METHODS or method.startswith("vsgd"):
        return settings
    published = paper.BEST_SETTINGS.get(benchmark, {}).get(method)
    if published is None:
        raise InputError(
            f"the paper has no setting of {method} for {benchmark}; give it with --eta0 and so on"
        )
    return published


def _error(benchmark: Benchmark, value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.2f} %" if benchmark.loss == "cross-entropy" else f"{value:.3f}"


def _summarise(benchmark: Benchmark, numbers: dict[str, Any]) -> None:
    for run in numbers["runs"]:
        if run["status"] != "finished":
            print(f"seed {run['seed']} {run['status']} at step {run['diverged_at']}", file=sys.stderr)
    for part in ("train", "test"):
        line = f"{part:5} {_error(benchmark, numbers['mean'][part])}"
        published = numbers["paper"][part]
        if published is not None:
            line += f"   (paper, mean of 10 runs: {_error(benchmark, published)})"
        print(line)


def _write(folder: Path, numbers: dict[str, Any], results: "list[RunResult]") -> list[str]:
    from pesky.online.archive import write_arrays

    paths = [folder / "train.json"]
    write_json(paths[0], numbers)
    for result in results:
        network, trace = folder / f"network-{result.seed}.npz", folder / f"trace-{result.seed}.npz"
        result.network.save(network)
        write_arrays(trace, result.fit.trace)
        paths += [network, trace]
    return [str(path) for path in paths]
