"""``pesky train``: one method on one benchmark or a user's own file, a few seeds."""

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pesky.cli.options import DataFolder, Jobs
from pesky.cli.output import AsJson, print_json, print_written, ready_folder, write_json
from pesky.cli.own_files import BENCHMARK_HELP, Layers, check_benchmark, own_layers
from pesky.errors import InputError, check_count
from pesky.lab import paper
from pesky.lab.benchmarks import (
    BENCHMARKS,
    GRANULARITIES,
    METHODS,
    ROBUST,
    Benchmark,
    Task,
    method_named,
)
from pesky.lab.own_data import is_own_file, own_benchmark
from pesky.lab.plain import finite_or_none

if TYPE_CHECKING:
    from pesky.lab.runs.seeds import EpochReport, RunResult

__all__ = ["train_command"]

_NUMBERS = "train.json"
_PAPERS = ", ".join(GRANULARITIES)
_RIVALS = ", ".join(method for method in METHODS if method not in (*GRANULARITIES, ROBUST))
# The methods that have an option; the settings of rivals are checked where the method is made.
_OPTIONS_OF = {
    "slow_start": tuple(GRANULARITIES),
    "dialect": tuple(GRANULARITIES),
    "init_samples": (*GRANULARITIES, ROBUST),
    "curvature_every": (*GRANULARITIES, ROBUST),
}


def train_command(
    benchmark: Annotated[str, typer.Argument(help=BENCHMARK_HELP)],
    layers: Layers = None,
    method: Annotated[
        str,
        typer.Option(help=f"{ROBUST}; the paper's {_PAPERS}; or its rivals {_RIVALS}."),
    ] = ROBUST,
    seeds: Annotated[int, typer.Option(help="Runs, from seeds 0, 1, ...")] = 1,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 6,
    jobs: Jobs = 0,
    eta0: Annotated[str | None, typer.Option(help="Of the rivals: the rate, such as 3e-2.")] = None,
    gamma: Annotated[
        str | None, typer.Option(help="Of sgd: decay, in 1/(training samples), such as 1/2.")
    ] = None,
    mu: Annotated[str | None, typer.Option(help="Of smd: the meta-learning rate.")] = None,
    tau: Annotated[str | None, typer.Option(help="Of amari, almeida, smd: memory.")] = None,
    slow_start: Annotated[float | None, typer.Option(help="Of the paper's vsgd: C, else d/10.")] = None,
    init_samples: Annotated[
        int | None,
        typer.Option(help=f"Of vsgd: n_0, else a thousandth of the data, of {ROBUST} 10."),
    ] = None,
    curvature_every: Annotated[
        int | None, typer.Option(help="Of vsgd: updates a bbprop pass, else 1.")
    ] = None,
    dialect: Annotated[
        Literal["paper", "literal"] | None,
        typer.Option(help="Of the paper's vsgd: how to read the slow start, else paper."),
    ] = None,
    data: DataFolder = None,
    as_json: AsJson = False,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder for numbers, traces and networks."),
    ] = None,
) -> None:
    """Train a network with one method; rivals default to the paper's best settings."""
    from pesky.lab.runs.seeds import run_seeds

    check_benchmark(benchmark)
    sizes = own_layers(layers, [benchmark])
    check_count("--seeds", seeds)
    check_count("--epochs", epochs)
    check_count("--jobs", jobs, least=0)
    settings = _settings(benchmark, method, {"eta0": eta0, "gamma": gamma, "mu": mu, "tau": tau})
    options = _options(
        method,
        {
            "slow_start": slow_start,
            "init_samples": init_samples,
            "curvature_every": curvature_every,
            "dialect": dialect,
        },
    )
    method_named(method, settings, 1, **options)  # what is wrong with it is said before reading data
    folder = ready_folder(out, *_files(seeds)) if out is not None else None
    chosen, task = _read(benchmark, sizes, data)
    made = method_named(method, settings, len(task.train_inputs), **options)

    def report(epoch: "EpochReport") -> None:
        print(
            f"{chosen.name} {method} seed {epoch.seed} epoch {epoch.epoch}/{epochs}: "
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
        "benchmark": chosen.name,
        "layers": list(chosen.layers),
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


def _options(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, if the method has them."""
    options = {name: value for name, value in given.items() if value is not None}
    for name in options:
        having = _OPTIONS_OF[name]
        if method in METHODS and method not in having:
            raise InputError(
                f"--{name.replace('_', '-')} is of {', '.join(having)}, not of {method}; "
                f"leave it out, or add --method {having[0]}"
            )
    return options


def _read(benchmark: str, layers: tuple[int, ...], data: Path | None) -> tuple[Benchmark, Task]:
    if is_own_file(benchmark):
        return own_benchmark(Path(benchmark), layers)
    chosen = BENCHMARKS[benchmark]
    return chosen, chosen.task(data)


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


def _files(seeds: int) -> list[str]:
    """Return the names of all files: the numbers, then network and trace of each seed."""
    return [_NUMBERS, *(f"{kind}-{seed}.npz" for seed in range(seeds) for kind in ("network", "trace"))]


def _write(folder: Path, numbers: dict[str, Any], results: "list[RunResult]") -> list[str]:
    from pesky.online.archive import write_arrays

    first, *rest = (folder / name for name in _files(len(results)))
    write_json(first, numbers)
    for result, network, trace in zip(results, rest[::2], rest[1::2], strict=True):
        result.network.save(network)
        write_arrays(trace, result.fit.trace)
    return [str(path) for path in (first, *rest)]
