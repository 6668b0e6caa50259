"""Start the command line, or say in one line what is missing for it."""

import sys


def main() -> None:
    """Run ``pesky``."""
    try:
        from pesky.cli import run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "pesky":
            raise
        print(
            f"pesky: the command line needs {missing.name}; run: pip install 'pesky[lab]'",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(run())


if __name__ == "__main__":
    main()
