"""The wheel and the sdist hold what they should, and all places name one version."""

import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import pesky
from tests import package

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel, and the files that Git has."""
    pytest.importorskip("build", reason="the packages are built with `build`: pip install 'pesky[dev]'")
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("what belongs into the packages is known from Git, which is not here")
    return *package.build(tmp_path_factory.mktemp("dist")), package.tracked_files(with_new=True)


@pytest.mark.subprocess
def test_the_sdist_is_all_that_git_has(built):
    sdist, _, tracked = built
    package.check_contents(sdist, tracked | {"PKG-INFO"})
    needed = {"LICENSE", "Makefile", "constraints.txt", "tests/conftest.py", "results/torch-table.csv"}
    assert needed <= package.names_in(sdist)


@pytest.mark.subprocess
def test_the_wheel_is_the_package_and_its_metadata(built):
    _, wheel, tracked = built
    package.check_contents(wheel, package.expected_in_wheel(tracked, wheel))
    names = package.names_in(wheel)
    assert {"pesky/py.typed", "pesky/lab/pages/report/style.css"} <= names
    assert not [name for name in names if "tests" in name.split("/")]


@pytest.mark.subprocess
def test_the_wheel_says_what_it_is(built):
    _, wheel, _ = built
    with zipfile.ZipFile(wheel) as opened:
        (place,) = [name for name in opened.namelist() if name.endswith("/METADATA")]
        metadata = opened.read(place).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nVersion: {pesky.__version__}\n" in metadata
    assert "\nLicense-Expression: BSD-3-Clause\n" in metadata
    extras = re.findall(r"^Provides-Extra: (.*)$", metadata, flags=re.MULTILINE)
    assert sorted(extras) == sorted(project["optional-dependencies"])
    assert (ROOT / "README.md").read_text(encoding="utf-8") in metadata


def test_wrong_contents_are_told(tmp_path):
    wheel = tmp_path / "pesky-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("pesky/rule.py", "")
        opened.writestr("tests/test_rule.py", "")
    expected = package.expected_in_wheel({"pesky/rule.py", "pesky/py.typed", "README.md"}, wheel)
    assert {name for name in expected if "dist-info" not in name} == {"pesky/rule.py", "pesky/py.typed"}
    with pytest.raises(ValueError, match=r"lacks pesky/py\.typed; has tests/test_rule\.py"):
        package.check_contents(wheel, {"pesky/rule.py", "pesky/py.typed"})
    sdist = tmp_path / "pesky-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as opened:
        opened.add(__file__, "pesky-1.0/tests/test_package.py")
    assert package.names_in(sdist) == {"tests/test_package.py"}


@pytest.mark.subprocess
def test_an_example_that_prints_something_else_is_told(tmp_path):
    package.run_example(sys.executable, "print(1 + 1)  # 2\n", tmp_path)
    with pytest.raises(ValueError, match="an example prints '2"):
        package.run_example(sys.executable, "print(1 + 1)  # 3\n", tmp_path)


def test_the_readme_installs_what_its_examples_are_run_with():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command, *_) = re.findall(r"```console\n(.*?)\n```", readme, flags=re.DOTALL)
    assert command == f"pip install --constraint constraints.txt '.[{package.EXTRA}]'"
    assert f"pesky-{pesky.__version__}-py3-none-any.whl[{package.EXTRA}]'" in readme


def test_all_places_name_one_version():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## (\S+) \((\S+)\)$", changes, flags=re.MULTILINE)[0]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert version == pesky.__version__
    assert f"version: {version}" in citation
    assert f"date-released: {date}" in citation
