"""The command line: ``pesky --help`` is a page for a newcomer."""

import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import pesky
from pesky.cli import bench, data, figures
from pesky.cli.quadratic import quadratic_command
from pesky.cli.race import race_command
from pesky.cli.report import report_command
from pesky.cli.reproduction import reproduction_command
from pesky.cli.torch_table import torch_table_command
from pesky.cli.train import train_command
from pesky.errors import InputError

__all__ = ["app", "run"]

_PAGE = """Learning rates that set themselves.

pesky implements vSGD, from "No More Pesky Learning Rates" (Schaul, Zhang, LeCun, 2013): it \
measures how noisy and how curved the loss is, and from that estimates, at every step, the rate \
that most decreases the expected loss.

Start here:

    pesky figure quadratic       draw vSGD against fixed and decaying rates

    pesky figure nonstationary   the same while the optimum keeps jumping

    pesky quadratic --help       numbers for your own problem and methods

    pesky train digits           a network, one sample at a time

    pesky train mine.csv --layers 20,50,3   the same on a file of yours

    pesky data fetch mnist       what the paper trains on; also cifar10

    pesky train M0 --method sgd  a rival at the paper's best setting (MNIST)

    pesky race digits            vSGD against its tuned rivals; or on a file of yours

    pesky torch-table --quick    VSGD against Adam and others on PyTorch tasks

    pesky report                 a page of what was raced, or of rows in files

Every command that computes takes --json (for programs) and --out DIR (where files go).
"""

_INTERRUPTED = 130  # what Typer makes of Ctrl-C

# The library's arguments and the options that set them.
_OPTIONS = {
    **{
        name: "--" + name.replace("_", "-")
        for name in (
            *("methods", "curvature", "noise", "optimum", "start", "change_every", "noise_factor"),
            *("curvature_factor", "blocks", "slow_start", "init_samples", "steps", "runs", "seed"),
            *("samples", "ratio", "jump", "jumps", "every", "layers"),
            *("eta0", "gamma", "mu", "tau", "curvature_every", "dialect", "seconds", "repeats"),
        )
    },
    "optimum_jump": "--jump",
}

app = typer.Typer(
    name="pesky", help=_PAGE, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
)
app.add_typer(figures.app, name="figure")
app.command("quadratic")(quadratic_command)
app.command("train")(train_command)
app.command("race")(race_command)
app.command("report")(report_command)
app.command("reproduction")(reproduction_command)
app.command("torch-table")(torch_table_command)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pesky {pesky.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; whatever a user can get wrong is one line and 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a path that it cannot encode
    try:
        result = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _complain(error.format_message())
    except InputError as error:
        return _complain(_with_options(str(error)))
    except BrokenPipeError:  # the reader, such as `head`, left
        _discard_output()
        return 1
    except OSError as error:
        _discard_output()
        return _complain(
            f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        )
    except MemoryError as error:
        return _complain(f"not enough memory: {error}; ask for fewer runs or steps")
    if result == _INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


def _with_options(message: str) -> str:
    """Rewrite a message of the library, which names arguments, to name what the user typed.

    An argument's name is the first word, or stands before =, or has an underscore.
    """
    return re.sub(r"^\w+|\w+(?==)|\w+_\w+", lambda word: _OPTIONS.get(word[0], word[0]), message)


def _discard_output() -> None:
    # What is left in the buffer cannot be written; the flush at exit would fail once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> int:
    line = " ".join(message.split())
    if line:
        print(f"pesky: {line}", file=sys.stderr)
    return 2
