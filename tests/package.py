"""Build the packages, check what is in them, and use the wheel alone: python -m tests.package FOLDER.

The wheel is built from the sdist, so an sdist that lacks something builds no wheel. The README's
examples then run in an environment that holds nothing but the wheel and what its extra asks for.
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from tests.examples import examples_in, promised_by

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXTRA = "torch"  # what the README installs
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def tracked_files(*, with_new=False):
    """Return the files that Git tracks, and new ones that it does not ignore if these may be there."""
    command = ["git", "ls-files", "--cached", *(["--others", "--exclude-standard"] if with_new else [])]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def build(folder):
    """Build the sdist, and from it the wheel; return both."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (sdist,), (wheel,) = (sorted(folder.glob(kind)) for kind in ("*.tar.gz", "*.whl"))
    return sdist, wheel


def names_in(archive):
    """Return the files of a wheel or an sdist, as they are named below its top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return set(opened.namelist())
    with tarfile.open(archive) as opened:
        return {member.name.partition("/")[2] for member in opened if member.isfile()}


def expected_in_wheel(tracked, wheel):
    """Return what belongs into the wheel: the package as Git has it, and its metadata."""
    name, version, *_ = wheel.name.split("-")
    metadata = {f"{name}-{version}.dist-info/{file}" for file in METADATA}
    return {file for file in tracked if file.startswith("pesky/")} | metadata


def check_contents(archive, expected):
    """Raise if files are missing from an archive, or do not belong there."""
    names = names_in(archive)
    faults = [f"lacks {name}" for name in sorted(expected - names)]
    faults += [f"has {name}, which does not belong there" for name in sorted(names - expected)]
    if faults:
        raise ValueError(f"{archive.name} " + "; ".join(faults))


def check_sdist_has_its_tests(sdist, folder):
    """Have pytest collect all tests of an unpacked sdist: every import of theirs must be found in it."""
    with tarfile.open(sdist) as opened:
        opened.extractall(folder, filter="data")
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"]
    subprocess.run(
        command, cwd=folder / sdist.name.removesuffix(".tar.gz"), check=True, stdout=subprocess.DEVNULL
    )


def install(wheel, folder):
    """Install the wheel with the README's extra into a new environment; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([python, "-m", "pip", "install", *options, f"{wheel.resolve()}[{EXTRA}]"], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)
    return python


def run_example(python, example, folder):
    """Run an example away from the sources; raise unless it prints what it says."""
    file = folder / "example.py"
    file.write_text(example, encoding="utf-8")
    ran = subprocess.run([python, "-I", file], cwd=folder, check=True, capture_output=True, text=True)
    if ran.stdout.splitlines() != promised_by(example):
        raise ValueError(f"an example prints {ran.stdout!r}:\n{example}")


def main(folder):
    tracked = tracked_files()
    sdist, wheel = build(folder)
    check_contents(sdist, tracked | {"PKG-INFO"})
    check_contents(wheel, expected_in_wheel(tracked, wheel))
    print(f"{sdist.name} and {wheel.name} hold what they should", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        check_sdist_has_its_tests(sdist, place / "sdist")
        print("all tests are found in the sdist", flush=True)
        python = install(wheel, place / "environment")
        examples = examples_in(README)
        for example in examples:
            run_example(python, example, place)
        print(f"{len(examples)} of the README's examples run with {wheel.name}[{EXTRA}] alone")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
