"""``pesky figure NAME``: the paper's figures, one command each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pesky.cli.options import DataFolder, Jobs
from pesky.cli.output import (
    AsJson,
    OutFolder,
    print_json,
    print_methods,
    print_written,
    ready_folder,
    write_json,
)
from pesky.cli.rows import RowFiles, RowStore, rows_from
from pesky.errors import check_count
from pesky.lab.figures import Picture, bowl, errors, idealised, nonstationary, quadratic
from pesky.lab.figures.critical.setups import Only
from pesky.lab.figures.picture import picture_files

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Draw a figure of the paper as PNG and SVG.")

DEFAULT_FOLDER = "pesky-figures"
Runs = Annotated[int, typer.Option(help="Independent runs.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]


Quick = Annotated[bool, typer.Option("--quick", help="Minutes instead of the full protocol.")]


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Say on standard error what is being computed, if somebody can see it."""
    with Console(stderr=True).status("computing") as status:
        yield lambda text: status.update(f"computing {text}")


@contextmanager
def _resumable() -> Iterator[Callable[[str], None]]:
    """As `_status`, for work of hours: each thing told is a line of its own, also in a log file."""
    console = Console(stderr=True)
    try:
        with console.status("computing"):
            yield lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here", highlight=False)
        raise


def _ready(out: str, name: str) -> Path:
    """Return the folder, in which all files of a picture can be written."""
    return ready_folder(out, *picture_files(name), f"{name}.json")


def _deliver(picture: Picture, folder: Path, as_json: bool, said: Sequence[str] = ()) -> None:
    files = picture.save(folder)
    numbers = folder / f"{picture.name}.json"
    write_json(numbers, picture.numbers)
    paths = [str(path) for path in (*files, numbers)]
    if as_json:
        print_json({"figure": picture.name, **picture.numbers, "files": paths})
        return
    if "methods" in picture.numbers:
        print_methods(f"Figure {picture.name}", picture.numbers["methods"])
    for line in said:
        print(line)
    rise = picture.numbers.get("tenfold_rise")
    if rise is not None:
        steps = rise["median_steps"]
        said = "never before the next" if steps is None else f"{steps:g} steps after the"
        print(
            f"vSGD's rate has risen tenfold {said} jump (median; it does so in "
            f"{rise['share_of_jumps_with_rise']:.0%} of all jumps)"
        )
    print_written(paths)


@app.command("idealised")
def idealised_command(
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
    samples: Annotated[int, typer.Option(help="Per-sample losses drawn.")] = 12,
    seed: Seed = 3,
) -> None:
    """Figure 1: per-sample quadratics and their mean."""
    folder = _ready(out, "idealised")
    _deliver(idealised.make(samples=samples, seed=seed), folder, as_json)


@app.command("bowl")
def bowl_command(
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
    ratio: Annotated[float, typer.Option(help="Curvature of one axis over the other's.")] = 10.0,
    steps: Annotated[int, typer.Option(help="Steps taken.")] = 400,
    runs: Runs = 1000,
    seed: Seed = 0,
) -> None:
    """Figure 2: trajectories in a noisy bowl."""
    folder = _ready(out, "bowl")
    _deliver(bowl.make(ratio=ratio, steps=steps, runs=runs, seed=seed), folder, as_json)


@app.command("quadratic")
def quadratic_command(
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
    steps: Annotated[int, typer.Option(help="Steps taken.")] = 1000,
    runs: Runs = 1000,
    start: Annotated[float, typer.Option(help="Distance from the optimum at first.")] = 5.0,
    seed: Seed = 0,
) -> None:
    """Figure 3: loss and learning rate against time."""
    folder = _ready(out, "quadratic")
    _deliver(quadratic.make(steps=steps, runs=runs, start=start, seed=seed), folder, as_json)


@app.command("nonstationary")
def nonstationary_command(
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
    jump: Annotated[float, typer.Option(help="Size of a jump, up or down, in sigma.")] = 3.0,
    every: Annotated[int, typer.Option(help="Steps between jumps.")] = 300,
    jumps: Annotated[int, typer.Option(help="Number of jumps.")] = 5,
    runs: Runs = 1000,
    seed: Seed = 0,
) -> None:
    """Figure 4: the same while the optimum jumps, again and again."""
    folder = _ready(out, "nonstationary")
    picture = nonstationary.make(jump=jump, every=every, jumps=jumps, runs=runs, seed=seed)
    _deliver(picture, folder, as_json)


@app.command("errors")
def errors_command(
    files: RowFiles = [],  # noqa: B006 (Typer makes it anew)
    view: Annotated[errors.View, typer.Option(help="Which of the paper's three pictures.")] = "mnist",
    store: RowStore = None,
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Figures 5 to 7: training against test error of every setting that was raced."""
    folder = _ready(out, f"errors-{view}")
    with rows_from(files, store) as rows:
        _deliver(errors.make(rows.store, view=view), folder, as_json)


@app.command("rates")
def rates_command(
    files: RowFiles = [],  # noqa: B006 (Typer makes it anew)
    quick: Quick = False,
    runs: Runs = 10,
    store: RowStore = None,
    data: DataFolder = None,
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Figure 8: learning rates of every method on C0 and M0, at the settings that won."""
    from pesky.lab.figures import rates

    folder = _ready(out, "rates")
    with rows_from(files, store) as rows, _status() as say:
        chosen = (1, 1) if quick else (runs, 6)
        picture = rates.make(rows.store, folder=data, runs=chosen[0], epochs=chosen[1], say=say)
    _deliver(picture, folder, as_json)


@app.command("slow-start")
def slow_start_command(
    benchmarks: Annotated[list[str] | None, typer.Argument(help="Else M0, M1 and M2.")] = None,
    quick: Quick = False,
    runs: Runs = 2,
    data: DataFolder = None,
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Test error of vSGD-l, -b, -g against the factor C of the slow start."""
    from pesky.lab.figures import slow_start

    folder = _ready(out, "slow-start")
    names = benchmarks or (["M0"] if quick else ["M0", "M1", "M2"])
    factors = slow_start.FACTORS[::2] if quick else slow_start.FACTORS
    with _status() as say:
        picture = slow_start.make(
            names, folder=data, runs=1 if quick else runs, factors=factors, say=say
        )
    _deliver(picture, folder, as_json)


@app.command("epochs")
def epochs_command(
    quick: Quick = False,
    passes: Annotated[
        int | None, typer.Option("--epochs", help="Passes over the data; else 100, or 5 if --quick.")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Hidden units; else 800, or 100 if --quick.")
    ] = None,
    seed: Seed = 0,
    data: DataFolder = None,
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """A long run: 100 epochs of vSGD-l on MNIST. Stopped, it goes on when started again."""
    from pesky.lab.figures import epochs

    default_passes, default_hidden = (5, 100) if quick else (100, 800)
    chosen = {
        "epochs": check_count("--epochs", default_passes if passes is None else passes),
        "hidden": check_count(
            "--hidden", default_hidden if hidden is None else hidden, most=epochs.MOST_HIDDEN
        ),
        "seed": check_count("--seed", seed, least=0),
    }
    folder = _ready(out, "epochs")
    with _resumable() as say:
        picture = epochs.make(folder, **chosen, folder=data, say=say)
    _deliver(picture, folder, as_json, _epochs_summary(picture.numbers))


def _epochs_summary(numbers: dict[str, Any]) -> list[str]:
    if numbers["status"] == "diverged":
        return [f"the run diverged after {len(numbers['test'])} of {numbers['epochs']} epochs"]
    return [
        f"after {numbers['epochs']} epochs: train {numbers['train'][-1]:.2f} %, "
        f"test {numbers['test'][-1]:.2f} % (paper, 800 hidden units, 100 epochs: "
        f"{numbers['paper_test_after_100_epochs']} %)"
    ]


@app.command("critical")
def critical_command(
    quick: Quick = False,
    runs: Annotated[int | None, typer.Option(help="Runs for each C; else 20, or 5 if --quick.")] = None,
    only: Annotated[Only, typer.Option(help="Which setups; XOR needs no data.")] = "all",
    jobs: Jobs = 0,
    data: DataFolder = None,
    out: OutFolder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Below which C vSGD-l becomes unstable, in 13 setups. Stopped, it goes on when started again."""
    from pesky.lab.figures.critical import study

    chosen = check_count("--runs", (5 if quick else 20) if runs is None else runs)
    check_count("--jobs", jobs, least=0)
    folder = _ready(out, "critical")
    with _resumable() as say:
        picture = study.make(
            folder, runs=chosen, quick=quick, only=only, jobs=jobs or None, folder=data, say=say
        )
    _deliver(picture, folder, as_json, _critical_summary(picture.numbers))


def _critical_summary(numbers: dict[str, Any]) -> list[str]:
    from pesky.lab.figures.critical.drawing import shown

    rows = (
        f"{row['name']:12} d {row['parameters']:>9,}   critical C {shown(row):>18}   "
        f"d/10 {row['papers_choice']:>9,.0f}"
        for row in numbers["setups"]
    )
    return [*rows, numbers["critical"], numbers["definition"]]
