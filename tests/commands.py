"""Commands as a user starts them: a real process, its two streams and its exit code."""

import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "pesky"]


def pesky_command(*arguments, cwd=None, **environment):
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
    )


def complaints(errors):
    """The lines on standard error; a slow machine or a cold cache has a command tell of a pause, too."""
    return [line for line in errors.splitlines() if "compiling the engine" not in line]


def assert_one_clear_line(result, *words):
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = complaints(result.stderr)
    assert line.startswith("pesky: ")
    for word in words:
        assert word in line
