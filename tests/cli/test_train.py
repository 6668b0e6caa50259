"""``pesky train`` and ``pesky bench``: what they print, and the paper's own numbers on its own data."""

import importlib.util
import json

import numpy as np
import pytest

from pesky.cli import run
from pesky.lab import paper
from pesky.lab.own_data import own_benchmark
from pesky.lab.runs.seeds import run_once
from pesky.online import VSGD, Network
from tests.commands import assert_one_clear_line, pesky_command
from tests.lab.own_files import samples, written_csv
from tests.real_data import needs_data


def train(*arguments):
    result = pesky_command("train", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@needs_data
@pytest.mark.parametrize(
    ("benchmark", "method"), [("M0", "vsgd-l"), ("M0", "vsgd-b"), ("M0", "vsgd-g"), ("C0", "vsgd-l")]
)
def test_vsgd_reproduces_the_paper_within_three_percent(benchmark, method):
    numbers = train(benchmark, "--method", method, "--seeds", "3")
    assert [run["status"] for run in numbers["runs"]] == ["finished"] * 3
    assert numbers["mean"]["train"] == pytest.approx(paper.TRAIN[benchmark][method], rel=0.03)
    assert numbers["mean"]["test"] == pytest.approx(paper.TEST[benchmark][method], rel=0.03)


def test_by_default_it_is_the_robust_form_which_learns_the_digits():
    numbers = train("digits", "--seeds", "2")
    assert numbers["method"] == "vsgd-robust"
    assert numbers["mean"]["test"] < 6  # percent; vSGD-l has more than 15


def test_a_file_of_ones_own_is_trained_on_as_the_race_does(tmp_path, capsys):
    path = written_csv(tmp_path / "mine.csv", *samples())
    arguments = ["--layers", "6,5,3", "--method", "vsgd-b", "--epochs", "2", "--json"]
    assert run(["train", str(path), *arguments, "--out", str(tmp_path / "made")]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["benchmark"], numbers["layers"]) == ("mine.csv", [6, 5, 3])
    assert Network.load(tmp_path / "made" / "network-0.npz").sizes == (6, 5, 3)
    benchmark, task = own_benchmark(path, (6, 5, 3))
    expected = run_once(benchmark, task, VSGD("block"), seed=0, epochs=2)
    assert numbers["mean"] == {"train": expected.train, "test": expected.test}


def test_json_and_files_tell_the_same(tmp_path):
    numbers = train(
        "digits", "--method", "vsgd-b", "--seeds", "2", "--epochs", "2", "--out", str(tmp_path)
    )
    assert len(numbers["runs"]) == 2
    assert json.loads((tmp_path / "train.json").read_text())["mean"] == numbers["mean"]
    assert len(numbers["files"]) == 5
    network = Network.load(tmp_path / "network-1.npz")
    assert network.sizes == (64, 30, 10)
    with np.load(tmp_path / "trace-0.npz") as trace:
        assert trace["step"][0] == 1
        assert trace["rate"].shape == (trace["step"].size, 5)


def test_without_json_there_is_a_line_an_epoch_and_a_summary():
    result = pesky_command("train", "digits", "--method", "vsgd-g", "--epochs", "2")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == [
        "digits vsgd-g seed 0 epoch 1/2",
        "digits vsgd-g seed 0 epoch 2/2",
    ]
    assert lines[-2].startswith("train")
    assert lines[-1].startswith("test")


def test_a_run_that_diverges_says_so():
    settings = ["--eta0", "1e9", "--gamma", "0"]
    run = train("digits", "--method", "sgd", *settings, "--epochs", "1")["runs"][0]
    assert (run["status"], 0 < run["diverged_at"] <= 1438) == ("diverged", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["M9"], ["M9", "digits", ".csv"]),
        (["none.csv", "--layers", "2,3"], ["there is no file none.csv"]),
        (["mine.csv"], ["--layers", "mine.csv"]),
        (["digits", "--layers", "64,10"], ["--layers", "digits"]),
        (["digits", "--slow-start", "2"], ["--slow-start", "vsgd-robust", "--method vsgd-l"]),
        (["digits", "--dialect", "literal"], ["--dialect", "--method vsgd-l"]),
        (
            ["digits", "--method", "adagrad", "--eta0", "1e-2", "--curvature-every", "2"],
            ["--curvature-every", "adagrad"],
        ),
        (["digits", "--method", "adam"], ["adam", "vsgd-l"]),
        (["digits", "--method", "sgd"], ["sgd", "--eta0"]),
        (["digits", "--method", "sgd", "--eta0", "0", "--gamma", "0"], ["--eta0", "0"]),
        (["digits", "--method", "sgd", "--eta0", "x", "--gamma", "0"], ["--eta0", "x"]),
        (["digits", "--eta0", "1"], ["vsgd-robust", "eta0"]),
        (["digits", "--method", "vsgd-l", "--eta0", "1"], ["vsgd-l", "eta0"]),
        (["digits", "--seeds", "0"], ["--seeds", "0"]),
        (["digits", "--epochs", "-1"], ["--epochs", "-1"]),
        (["M0", "--data", "nowhere"], ["nowhere"]),
    ],
)
def test_what_a_user_gets_wrong_is_one_clear_line(arguments, words, tmp_path):
    assert_one_clear_line(pesky_command("train", *arguments, cwd=tmp_path), *words)


def test_bench_reports_every_ratio():
    result = pesky_command("bench", "online", "--repeats", "1", "--seconds", "0.01", "--json")
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout)
    assert set(numbers["networks"]) == {"M0", "M1", "M2", "C1"}
    for name, row in numbers["networks"].items():
        ratios = ["vsgd_l_over_sgd", "share_of_copy_bandwidth"]
        if importlib.util.find_spec("torch"):
            ratios.append("torch_sgd_over_vsgd_l")
        if name != "C1":
            ratios.append("two_threads_over_one")
        assert all(row[ratio] > 0 for ratio in ratios)
        # Parameters and four statistics in float32, and a little for the units.
        assert 20 <= row["vsgd_l_bytes_per_parameter"] < 24
    assert [row["parameters"] for row in numbers["growth"]] == [10**k for k in range(3, 8)]
