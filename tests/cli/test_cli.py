"""The command line as a user meets it: a real process, its two streams and its exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import pesky
from pesky.cli import run
from pesky.lab.comparison import compare, summary
from pesky.quadratic import SGD, VSGD, NoisyQuadratic
from tests.commands import COMMAND, assert_one_clear_line, pesky_command

FIGURES = {
    "idealised": [],
    "bowl": ["--runs", "5", "--steps", "20"],
    "quadratic": ["--runs", "20", "--steps", "50"],
    "nonstationary": ["--runs", "20", "--every", "40", "--jumps", "2"],
}
SMALL = ["--runs", "10", "--steps", "30"]


BEYOND_FLOATS = "9" * 400


def in_shell(redirected):
    """Run a shell line in which $PESKY is the command."""
    environment = {**os.environ, "PESKY": " ".join(COMMAND), "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        redirected, shell=True, capture_output=True, text=True, env=environment, check=False
    )


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


def test_help_does_not_wait_for_what_only_some_commands_need():
    heavy = ("numba", "matplotlib", "scipy", "sklearn", "torch", "distributed")
    code = f"import sys, pesky.cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


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
        f"{name}{ending}" for ending in ("-narrow.svg", ".json", ".png", ".svg")
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
        (["quadratic", "--runs", "0"], ["--runs", "0"]),
        (["quadratic", "--runs", "9223372036854775807", "--steps", "1"], ["--runs", "memory"]),
        (["quadratic", "--steps", "9" * 29], ["--steps", "9" * 29]),
        (["quadratic", "--steps", BEYOND_FLOATS], ["--steps"]),
        (["quadratic", "--seed", BEYOND_FLOATS], ["--seed"]),
        (["quadratic", "--change-every", BEYOND_FLOATS], ["--change-every"]),
        (["quadratic", "--curvature", BEYOND_FLOATS], ["--curvature"]),
        (["quadratic", "--init-samples", BEYOND_FLOATS], ["--init-samples"]),
        (["quadratic", "--methods", "adam"], ["--methods", "adam", "vsgd-l"]),
        (["quadratic", "--methods", "sgd:0"], ["--methods", "sgd:0"]),
        (["quadratic", "--methods", "sgd:1,sgd:1.0"], ["--methods", "SGD 1", "once"]),
        (["quadratic", "--methods", "sgd:1", "--slow-start", "2"], ["--methods", "vsgd"]),
        (["quadratic", "--blocks", "1"], ["--blocks", "vsgd-b"]),
        (["quadratic", "--blocks", ""], ["--blocks"]),
        (["quadratic", "--slow-start", "0"], ["--slow-start"]),
        (["quadratic", "--out", ""], ["--out"]),
        (["quadratic", "--methods", "vsgd-b"], ["--blocks"]),
        (["quadratic", "--methods", "vsgd-b", "--blocks", "2,x"], ["--blocks", "2,x"]),
        (["quadratic", "--methods", "vsgd-b", "--blocks", "2.5"], ["--blocks", "2.5"]),
        (["quadratic", "--methods", "vsgd-b", "--blocks", "2"], ["--blocks", "2"]),
        (["quadratic", "--curvature", "-1"], ["--curvature", "-1"]),
        (["quadratic", "--curvature", "1,a"], ["--curvature", "1,a"]),
        (["quadratic", "--jump", "1"], ["--jump", "--change-every"]),
        (["quadratic", "--steps", "1000000", "--runs", "1000000"], ["memory"]),
        (["figure", "nonstationary", "--jump", "-1"], ["--jump", "-1"]),
        (["figure", "nonstationary", "--every", "9" * 20], ["--every"]),
        (["figure", "nonstationary", "--jumps", "9" * 20], ["--jumps"]),
        (["figure", "nonstationary", "--every", "9" * 18], ["--every", "--jumps", "steps"]),
        (["figure", "idealised", "--samples", "1"], ["--samples", "1"]),
        (["figure", "idealised", "--samples", "9" * 20], ["--samples"]),
        (["figure", "idealised", "--samples", "1000000000"], ["--samples", "1000"]),
        (["figure", "idealised", "--out", ""], ["--out"]),
        (["figure", "bowl", "--ratio", "0"], ["--ratio", "0"]),
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


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["figure", "idealised"], "idealised.svg"),
        (["figure", "bowl"], "bowl.json"),
        (["quadratic"], "quadratic.npz"),
        (["train", "digits", "--seeds", "2"], "network-1.npz"),
        (["bench", "online"], "bench-online.json"),
        (["reproduction", "--store", "runs.sqlite"], "reproduction.md"),
        (["report"], "report.html"),
    ],
)
def test_what_is_in_the_way_of_a_file_is_told_before_any_work(
    tmp_path, monkeypatch, capsys, arguments, name
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made" / name).mkdir(parents=True)
    assert run([*arguments, "--out", "made"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert (
        printed.err == f"pesky: in --out made, {name} cannot be written: it is a folder; name a file\n"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["made", name]


def test_files_in_a_folder_may_be_links(tmp_path):
    (tmp_path / "far").mkdir()
    for kind in (".png", ".svg", "-narrow.svg", ".json"):
        (tmp_path / f"idealised{kind}").symlink_to(f"far/{kind}")
    assert pesky_command("figure", "idealised", "--out", str(tmp_path)).returncode == 0
    for kind in (".png", ".svg", "-narrow.svg", ".json"):
        assert (tmp_path / f"idealised{kind}").is_symlink()
        assert (tmp_path / "far" / kind).stat().st_size > 0


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder closed to root too")
def test_a_folder_closed_to_everybody_is_one_clear_line():
    assert_one_clear_line(pesky_command("figure", "idealised", "--out", "/proc/pesky"), "--out")


def test_an_unwritable_folder_is_one_clear_line(tmp_path, monkeypatch, capsys):
    # Root may write everywhere, so the system's answer is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert run(["figure", "idealised", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"pesky: --out {tmp_path} is not writable")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')")
    result = pesky_command("--version", PYTHONPATH=str(tmp_path))
    assert_one_clear_line(result, "typer", "pesky[lab]")


def test_an_interrupt_during_the_imports_is_one_clear_line(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    result = pesky_command("--version", PYTHONPATH=str(tmp_path))
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "pesky: interrupted\n")


def test_an_interrupt_during_the_work_is_one_clear_line(tmp_path):
    arguments = ["quadratic", "--steps", "1000000", "--runs", "2", "--out", str(tmp_path / "made")]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "made").exists():  # made when the work begins
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "pesky: interrupted\n")
    assert process.returncode == 130


@pytest.mark.parametrize("arguments", [["--version"], ["quadratic", *SMALL, "--json"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_left_is_no_error_message(arguments, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [*COMMAND, *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.parametrize(
    "command",
    [
        "quadratic --runs 2 --steps 2",
        "train digits --method vsgd-b --epochs 3 --seeds 2",
        "reproduction",
        "torch-table --no-run",
        "data list",
    ],
)
def test_a_reader_that_leaves_early_is_no_error_message(tmp_path, command):
    if "torch" in str(command):
        pytest.importorskip("torch")
    result = in_shell(f"cd {tmp_path} && $PESKY {command} | head -1")
    assert "Traceback" not in result.stderr
    assert "rror" not in result.stderr
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize("command", ["--version", "--help", "quadratic --runs 2 --steps 2"])
def test_closed_streams_are_no_traceback(command):
    result = in_shell(f"$PESKY {command} >&-")
    assert (result.returncode, result.stderr) == (0, "")
    result = in_shell(f"$PESKY {command} --nonsense 2>&-")
    assert (result.returncode, result.stdout) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_device_is_one_clear_line():
    assert_one_clear_line(in_shell("$PESKY --version >/dev/full"), "space")


@pytest.mark.parametrize("name", ["[/x]", "[bold]é"])
def test_paths_are_printed_as_they_are_or_escaped(name, tmp_path):
    result = pesky_command("figure", "idealised", "--out", name, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    escaped = name.encode("ascii", "backslashreplace").decode()
    assert f"wrote {escaped}/idealised.png, " in result.stdout


def test_long_method_names_and_numbers_are_not_cut():
    text = "sgd:0.123456789012345/(1+0.123456789012345t)"
    result = pesky_command("quadratic", "--methods", text, *SMALL, COLUMNS="60")
    assert "SGD 0.123456789012345/(1+0.123456789012345t)" in result.stdout
    assert "…" not in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["figure", "quadratic", "--steps", "1", "--runs", "2"],
        ["figure", "quadratic", "--start", "1e100", "--steps", "5", "--runs", "2"],
        ["figure", "bowl", "--ratio", "1e100", "--steps", "30", "--runs", "2"],
        ["figure", "bowl", "--ratio", "1e-300", "--steps", "1", "--runs", "1"],
        ["figure", "nonstationary", "--jump", "1e300", "--every", "2", "--jumps", "1", "--runs", "2"],
        ["quadratic", "--start", "1e154", "--steps", "2", "--runs", "2"],
    ],
)
def test_no_library_warns(arguments, tmp_path):
    result = pesky_command(*arguments, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_option_reaches_the_problem_and_the_methods():
    result = pesky_command(
        *("quadratic", "--methods", "vsgd-b,sgd:0.02", *SMALL, "--seed", "7", "--json"),
        *("--curvature", "1,10,2", "--noise", "0.5,1,2", "--optimum", "1,2,3", "--start", "4,5,6"),
        *("--change-every", "10", "--jump", "2", "--noise-factor", "3", "--curvature-factor", "0.25"),
        *("--blocks", "1,2", "--estimate-curvature", "--slow-start", "2.5", "--init-samples", "4"),
    )
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout)
    parameters = {
        "curvature": [1.0, 10.0, 2.0],
        "noise": [0.5, 1.0, 2.0],
        "optimum": [1.0, 2.0, 3.0],
        "start": [4.0, 5.0, 6.0],
        "change_every": 10,
        "optimum_jump": 2.0,
        "noise_factor": 3.0,
        "curvature_factor": 0.25,
    }
    settings = {
        "blocks": [1, 2],
        "curvature": "estimated",
        "slow_start": 2.5,
        "init_samples": 4,
    }
    assert numbers["problem"] == parameters
    assert numbers["vsgd"] == settings
    assert [numbers[key] for key in ("dimension", "steps", "runs", "seed")] == [3, 30, 10, 7]
    methods = [VSGD("block", **settings), SGD(0.02)]
    traces = compare(NoisyQuadratic(**parameters), methods, steps=30, runs=10, seed=7)
    assert numbers["methods"] == summary(traces)


def test_the_seed_of_a_figure_is_used_and_told(tmp_path):
    arguments = ["figure", "quadratic", *FIGURES["quadratic"], "--json"]
    results = [
        json.loads(pesky_command(*arguments, "--seed", seed, cwd=tmp_path).stdout) for seed in "12"
    ]
    assert [result["seed"] for result in results] == [1, 2]
    assert results[0]["methods"] != results[1]["methods"]
