"""The command line as a user meets it: a real process, its two streams and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pesky

FIGURES = {
    "idealised": [],
    "bowl": ["--runs", "5", "--steps", "20"],
    "quadratic": ["--runs", "20", "--steps", "50"],
    "nonstationary": ["--runs", "20", "--every", "40", "--jumps", "2"],
}
SMALL = ["--runs", "10", "--steps", "30"]


def pesky_command(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "pesky", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def assert_one_clear_line(result, *words):
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("pesky: ")
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_help_names_the_commands_and_where_to_start():
    result = pesky_command("--help")
    assert result.returncode == 0
    for word in ("Start here", "figure", "quadratic", "--version", "--json"):
        assert word in result.stdout


def test_every_command_has_help():
    for command in ["figure", "quadratic", *(f"figure {name}" for name in FIGURES)]:
        result = pesky_command(*command.split(), "--help")
        assert result.returncode == 0
        assert "Usage" in result.stdout


def test_version():
    assert pesky_command("--version").stdout == f"pesky {pesky.__version__}\n"


@pytest.mark.parametrize("name", FIGURES)
def test_figures_write_pictures_and_print_nothing_but_json(name, tmp_path):
    folder = tmp_path / "new" / "folder"
    result = pesky_command("figure", name, *FIGURES[name], "--json", "--out", str(folder))
    assert (result.returncode, result.stderr) == (0, "")
    numbers = json.loads(result.stdout)
    assert numbers["figure"] == name
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{name}.{x}" for x in ("json", "png", "svg")
    ]
    assert sorted(numbers["files"]) == sorted(str(path) for path in folder.iterdir())
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / f"{name}.svg").read_text()


def test_figures_without_json_print_a_table_and_the_paths(tmp_path):
    result = pesky_command("figure", "nonstationary", *FIGURES["nonstationary"], cwd=tmp_path)
    assert result.returncode == 0
    assert "vSGD-l" in result.stdout
    assert "tenfold" in result.stdout
    assert "nonstationary.svg" in result.stdout
    assert (tmp_path / "pesky-figures" / "nonstationary.png").exists()


def test_quadratic_takes_every_method_and_writes_all_traces(tmp_path):
    methods = "vsgd-l,vsgd-b,vsgd-g,oracle-l,oracle-g,sgd:0.05,sgd:0.2/t,sgd:0.1/(1+0.01t)"
    result = pesky_command(
        *("quadratic", "--methods", methods, "--curvature", "1,10,2", "--blocks", "1,2", *SMALL),
        *(
            "--change-every",
            "10",
            "--jump",
            "2",
            "--noise-factor",
            "2",
            "--json",
            "--out",
            str(tmp_path),
        ),
    )
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout)
    assert numbers["dimension"] == 3
    assert len(numbers["methods"]) == 8
    with np.load(tmp_path / "quadratic.npz") as traces:
        assert len(traces.files) == 16
        assert traces["vSGD-b: excess loss"].shape == (31, 10)
        assert traces["vSGD-b: rate"].shape == (30, 10, 3)
    assert json.loads((tmp_path / "quadratic.json").read_text())["runs"] == 10


def test_a_diverging_rate_is_valid_json_too():
    result = pesky_command("quadratic", "--methods", "sgd:10", "--steps", "600", "--runs", "2", "--json")
    row = json.loads(result.stdout)["methods"][0]
    assert row["rejected_samples"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], ["nonsense"]),
        (["figure", "nonsense"], ["nonsense"]),
        (["quadratic", "--nonsense"], ["--nonsense"]),
        (["quadratic", "--runs", "many"], ["--runs", "integer"]),
        (["quadratic", "--runs", "0"], ["runs", "0"]),
        (["quadratic", "--methods", "adam"], ["adam", "vsgd-l"]),
        (["quadratic", "--methods", "sgd:0"], ["eta0", "0"]),
        (["quadratic", "--methods", "vsgd-b"], ["--blocks"]),
        (["quadratic", "--methods", "vsgd-b", "--blocks", "2,x"], ["--blocks", "2,x"]),
        (["quadratic", "--methods", "vsgd-b", "--blocks", "2.5"], ["blocks", "2.5"]),
        (["quadratic", "--curvature", "-1"], ["curvature", "-1"]),
        (["quadratic", "--curvature", "1,a"], ["--curvature", "1,a"]),
        (["quadratic", "--jump", "1"], ["change_every"]),
        (["quadratic", "--steps", "1000000", "--runs", "1000000"], ["memory"]),
        (["figure", "nonstationary", "--jump", "-1"], ["jump", "-1"]),
        (["figure", "idealised", "--samples", "1"], ["samples", "1"]),
    ],
)
def test_what_a_user_gets_wrong_is_one_clear_line(arguments, words, tmp_path):
    assert_one_clear_line(pesky_command(*arguments, cwd=tmp_path), *words)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = pesky_command("figure", "idealised", "--out", str(tmp_path / "file"))
    assert_one_clear_line(result, "--out", "file")
    result = pesky_command("quadratic", *SMALL, "--out", str(tmp_path / "file" / "below"))
    assert_one_clear_line(result, "--out", "below")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder closed to root too")
def test_a_folder_closed_to_everybody_is_one_clear_line():
    assert_one_clear_line(pesky_command("figure", "idealised", "--out", "/proc/pesky"), "--out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_one_clear_line(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert_one_clear_line(pesky_command("figure", "idealised", "--out", str(locked)), "locked")


def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-m", "pesky", "--version"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert_one_clear_line(result, "typer", "pesky[lab]")
