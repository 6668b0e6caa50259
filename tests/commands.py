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


def complaints(result):
    """What a command wrote beside its result; a slow machine or a cold cache has it tell of a pause."""
    return [line for line in result.stderr.splitlines() if "compiling the engine" not in line]


def assert_one_clear_line(result, *words):
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = complaints(result)
    assert line.startswith("pesky: ")
    for word in words:
        assert word in line
