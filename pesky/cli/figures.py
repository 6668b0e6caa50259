"""``pesky figure NAME``: the paper's figures, one command each."""

from pathlib import Path
from typing import Annotated

import typer

from pesky.cli.output import (
    AsJson,
    OutFolder,
    print_json,
    print_methods,
    print_written,
    ready_folder,
    write_json,
)
from pesky.lab.figures import Picture, bowl, idealised, nonstationary, quadratic

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Draw a figure of the paper as PNG and SVG.")

DEFAULT_FOLDER = "pesky-figures"
Runs = Annotated[int, typer.Option(help="Independent runs.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]


def _deliver(picture: Picture, folder: Path, as_json: bool) -> None:
    files = picture.save(folder)
    numbers = folder / f"{picture.name}.json"
    write_json(numbers, picture.numbers)
    paths = [str(path) for path in (*files, numbers)]
    if as_json:
        print_json({"figure": picture.name, **picture.numbers, "files": paths})
        return
    if "methods" in picture.numbers:
        print_methods(f"Figure {picture.name}", picture.numbers["methods"])
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
    folder = ready_folder(out)
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
    folder = ready_folder(out)
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
    folder = ready_folder(out)
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
    folder = ready_folder(out)
    picture = nonstationary.make(jump=jump, every=every, jumps=jumps, runs=runs, seed=seed)
    _deliver(picture, folder, as_json)
