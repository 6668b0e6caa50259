"""``pesky bench``: how fast it is here, as ratios."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pesky.cli.output import AsJson, print_json, print_written, ready_folder, write_json
from pesky.errors import check_count, check_number

__all__ = ["app"]

_ONLINE, _TORCH = "bench-online.json", "bench-torch.json"

app = typer.Typer(no_args_is_help=True, help="Measure speed on this machine, as ratios within one run.")


@app.command("online")
def online_command(
    repeats: Annotated[int, typer.Option(help="Timings of each kind; the best counts.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of one timing.")] = 0.3,
    as_json: AsJson = False,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help=f"Folder for {_ONLINE}.")
    ] = None,
) -> None:
    """Measure the online engine: against PyTorch, plain SGD, the memory's bandwidth and two threads."""
    from pesky.lab.bench_online import bench_online

    check_count("--repeats", repeats)
    check_number("--seconds", seconds, above=0)
    folder = ready_folder(out, _ONLINE) if out is not None else None
    console = Console(stderr=True)
    with console.status("measuring") as status:
        result = bench_online(
            repeats=repeats, seconds=seconds, say=lambda text: status.update(f"measuring {text}")
        )
    _finish(result, folder, _ONLINE, as_json, _print_online)


@app.command("torch")
def torch_command(
    repeats: Annotated[int, typer.Option(help="Timings of each kind; the median counts.")] = 15,
    as_json: AsJson = False,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help=f"Folder for {_TORCH}.")
    ] = None,
) -> None:
    """Measure the PyTorch optimizer: its update, bbprop and whole steps, beside fused Adam's."""
    from pesky.lab.bench_models import bench_models
    from pesky.lab.bench_torch import bench_update

    check_count("--repeats", repeats)
    folder = ready_folder(out, _TORCH) if out is not None else None
    with Console(stderr=True).status("measuring") as status:

        def say(text: str) -> None:
            status.update(f"measuring {text}")

        result = {
            "update": bench_update(repeats=repeats, say=say),
            "models": bench_models(repeats=repeats, say=say),
        }
    _finish(result, folder, _TORCH, as_json, _print_torch)


def _finish(
    result: dict[str, Any],
    folder: Path | None,
    name: str,
    as_json: bool,
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Write and print what was measured."""
    files = []
    if folder is not None:
        write_json(folder / name, result)
        files = [str(folder / name)]
    if as_json:
        print_json({**result, "files": files})
        return
    show(result)
    if files:
        print_written(files)


def _print_online(result: dict[str, Any]) -> None:
    _print_networks(result["networks"])
    _print_growth(result)


def _print_torch(result: dict[str, Any]) -> None:
    for title, rows in (("The update alone", result["update"]), ("Models, batch 64", result["models"])):
        columns = list(dict.fromkeys(name for row in rows for name in row))
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column("")
        for _ in rows:
            table.add_column("", justify="right")
        for name in columns:
            table.add_row(name.replace("_", " "), *(_cell(row.get(name)) for row in rows))
        Console().print(table)


_ROWS = {
    "parameters": "parameters",
    "vsgd_l_microseconds": "vSGD-l, microseconds",
    "sgd_microseconds": "SGD, microseconds",
    "torch_sgd_microseconds": "torch SGD, microseconds",
    "torch_sgd_over_vsgd_l": "torch SGD / vSGD-l",
    "vsgd_l_over_sgd": "vSGD-l / SGD",
    "share_of_copy_bandwidth": "time of a copy / vSGD-l",
    "two_threads_over_one": "two threads / one",
    "vsgd_l_bytes_per_parameter": "vSGD-l, bytes a parameter",
}


def _print_networks(networks: dict[str, dict[str, Any]]) -> None:
    table = Table(title="One step, batch size 1", title_justify="left", title_style="bold")
    table.add_column("")
    for name, row in networks.items():
        table.add_column(f"{name}\n{'-'.join(str(size) for size in row['sizes'])}", justify="right")
    for key, heading in _ROWS.items():
        table.add_row(heading, *(_cell(row.get(key)) for row in networks.values()))
    Console().print(table)


def _print_growth(result: dict[str, Any]) -> None:
    print("Cost of a vSGD-l step as the network grows ([n, 10]):")
    for row in result["growth"]:
        print(f"  {row['parameters']:>10,} parameters  {row['nanoseconds_per_parameter']:6.2f} ns each")


def _cell(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
