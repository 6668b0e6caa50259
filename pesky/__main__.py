"""Start the command line, or say in one line why it cannot."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run ``pesky``."""
    _replace_closed_streams()
    try:
        sys.exit(_start())
    except KeyboardInterrupt:
        print("pesky: interrupted", file=sys.stderr)
        sys.exit(130)


def _start() -> int:
    # Imported here, so that a missing extra and Ctrl-C meanwhile are answered in one line too.
    try:
        from pesky.cli import run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "pesky":
            raise
        print(
            f"pesky: the command line needs {missing.name}; run: pip install 'pesky[lab]'",
            file=sys.stderr,
        )
        return 2
    return run()


def _replace_closed_streams() -> None:
    # A stream closed by the shell (`pesky >&-`) is None in Python, which few libraries expect.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


if __name__ == "__main__":
    main()
