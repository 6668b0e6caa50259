"""The command line: ``pesky --help`` is a page for a newcomer."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import pesky
from pesky.cli import figures
from pesky.cli.quadratic import quadratic_command
from pesky.errors import InputError

__all__ = ["app", "run"]

_PAGE = """Learning rates that set themselves.

pesky implements vSGD, from "No More Pesky Learning Rates" (Schaul, Zhang, LeCun, 2013): it \
measures how noisy and how curved the loss is and takes, at every step, the rate that most \
decreases the expected loss.

Start here:

    pesky figure quadratic       draw vSGD against fixed and decaying rates

    pesky figure nonstationary   the same while the optimum keeps jumping

    pesky quadratic --help       numbers for your own problem and methods

Every command that computes takes --json (for programs) and --out DIR (where files go).
"""

app = typer.Typer(
    name="pesky", help=_PAGE, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
)
app.add_typer(figures.app, name="figure")
app.command("quadratic")(quadratic_command)


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
    try:
        result = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _complain(error.format_message())
    except InputError as error:
        return _complain(str(error))
    except BrokenPipeError:
        # The reader (such as `head`) left; a second flush at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(
            f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        )
    except MemoryError as error:
        return _complain(f"not enough memory: {error}; ask for fewer runs or steps")
    except (KeyboardInterrupt, typer.Abort):
        print("pesky: interrupted", file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0


def _complain(message: str) -> int:
    line = " ".join(message.split())
    if line:
        print(f"pesky: {line}", file=sys.stderr)
    return 2
