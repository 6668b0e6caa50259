"""The figures that take hours: what stops them loses nothing, and what they measure is what they say."""

import json
import signal
import subprocess
import time

import numpy as np
import pytest

from pesky.cli import run
from pesky.errors import InputError
from pesky.lab.benchmarks import Benchmark, Task
from pesky.lab.figures import epochs
from pesky.lab.figures.critical import outcomes, study
from pesky.lab.figures.critical.search import grid, search
from pesky.lab.figures.critical.setups import Setup
from pesky.lab.figures.critical.stability import is_unstable
from pesky.lab.runs import training
from pesky.online import SGD, Learner
from tests.commands import COMMAND, assert_one_clear_line, pesky_command

SMALL = {"epochs": 3, "hidden": 4, "seed": 1}


def tiny_task(self, folder=None):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(300, self.layers[0])).astype(np.float32)
    labels = inputs[:, :10].argmax(axis=1)
    return Task(inputs[:200], labels[:200], inputs[200:], labels[200:])


@pytest.fixture
def _tiny_data(monkeypatch):
    monkeypatch.setattr(Benchmark, "task", tiny_task)


def killed_in(monkeypatch, owner, name, call):
    """Make the `call`-th call of a method end the process, as far as the test is concerned."""
    original, calls = getattr(owner, name), []

    def deadly(*arguments, **options):
        calls.append(arguments)
        if len(calls) == call:
            raise SystemExit("killed")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, deadly)


@pytest.mark.usefixtures("_tiny_data")
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_long_run_killed_between_a_checkpoint_and_its_errors_goes_on_the_same(
    call, tmp_path, monkeypatch
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    expected = epochs.make(whole, **SMALL).numbers
    with monkeypatch.context() as patched:
        killed_in(patched, epochs._History, "add", call)
        with pytest.raises(SystemExit):
            epochs.make(cut, **SMALL)
    assert epochs.make(cut, **SMALL).numbers == expected
    assert len(expected["test"]) == SMALL["epochs"]


@pytest.mark.usefixtures("_tiny_data")
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_long_run_killed_before_a_checkpoint_goes_on_the_same(call, tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    expected = epochs.make(whole, **SMALL).numbers
    with monkeypatch.context() as patched:
        killed_in(patched, Learner, "save", call)
        with pytest.raises(SystemExit):
            epochs.make(cut, **SMALL)
    assert epochs.make(cut, **SMALL).numbers == expected


def unfinished(folder, monkeypatch):
    """Leave a run behind that was killed before its last epoch was measured; return its files."""
    with monkeypatch.context() as patched:
        killed_in(patched, epochs._History, "add", SMALL["epochs"])
        with pytest.raises(SystemExit):
            epochs.make(folder, **SMALL)
    return epochs.working_files(folder, **SMALL)


@pytest.mark.usefixtures("_tiny_data")
def test_errors_without_their_checkpoint_are_measured_again(tmp_path, monkeypatch):
    checkpoint, noted = unfinished(tmp_path, monkeypatch)
    checkpoint.unlink()
    noted.write_text("[]")
    numbers = epochs.make(tmp_path, **SMALL).numbers
    noted.unlink()
    assert epochs.make(tmp_path, **SMALL).numbers == numbers


@pytest.mark.usefixtures("_tiny_data")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "damaged"),
        ('{"numerics": -1, "train": [], "test": []}', "another version"),
        ('{"numerics": 1, "train": [9], "test": [9]}', "lacks epochs"),
    ],
)
def test_what_cannot_be_gone_on_from_is_named(content, words, tmp_path, monkeypatch):
    _, noted = unfinished(tmp_path, monkeypatch)
    noted.write_text(content)
    with pytest.raises(InputError, match=words) as caught:
        epochs.make(tmp_path, **SMALL)
    assert str(noted) in str(caught.value)


@pytest.mark.usefixtures("_tiny_data")
def test_a_run_that_is_over_is_not_done_again_by_the_same_command_but_by_any_other(
    tmp_path, monkeypatch
):
    expected = epochs.make(tmp_path, **SMALL).numbers
    other = epochs.make(tmp_path, **SMALL | {"hidden": 3}).numbers
    with monkeypatch.context() as patched:
        patched.setattr(training, "fit", None)
        patched.setattr(Benchmark, "task", None)
        assert epochs.make(tmp_path, **SMALL).numbers == expected
        assert epochs.make(tmp_path, **SMALL | {"hidden": 3}).numbers == other
        for changed in ({"epochs": 2}, {"hidden": 5}, {"seed": 2}):
            with pytest.raises(TypeError):
                epochs.make(tmp_path, **SMALL | changed)
        patched.setattr(epochs, "NUMERICS_VERSION", -1)
        with pytest.raises(TypeError):
            epochs.make(tmp_path, **SMALL)


@pytest.mark.usefixtures("_tiny_data")
def test_a_run_that_diverged_is_over_too(tmp_path, monkeypatch):
    monkeypatch.setattr(epochs, "VSGD", lambda: SGD(1e9))
    numbers = epochs.make(tmp_path, **SMALL).numbers
    assert numbers["status"] == "diverged"
    monkeypatch.setattr(training, "fit", None)
    assert epochs.make(tmp_path, **SMALL).numbers == numbers


@pytest.mark.usefixtures("_tiny_data")
def test_the_command_leaves_numbers_and_pictures_and_no_checkpoint(tmp_path, capsys):
    arguments = ["--epochs", "2", "--hidden", "3", "--json", "--out", str(tmp_path)]
    assert run(["figure", "epochs", *arguments]) == 0
    printed = capsys.readouterr()
    numbers = json.loads(printed.out)
    assert numbers["layers"] == [784, 3, 10]
    assert len(numbers["train"]) == len(numbers["test"]) == 2
    assert "after epoch 2 of 2" in printed.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "epochs-3-hidden-2-epochs-seed-0.errors.json",
        *(f"epochs{ending}" for ending in ("-narrow.svg", ".json", ".png", ".svg")),
    ]
    assert run(["figure", "epochs", *arguments]) == 0
    again = capsys.readouterr()
    assert (json.loads(again.out), "after epoch" in again.err) == (numbers, False)


def made_up(limit):
    """Runs whose seeds agree with the limit: run `seed` is unstable at C up to limit / (seed + 1)."""
    return lambda factor, seed: factor * (seed + 1) <= limit


@pytest.mark.parametrize("runs", [1, 5, 10, 11, 20, 30])
def test_critical_c_is_the_largest_at_which_a_tenth_of_the_runs_is_unstable(runs):
    factors = grid(1000, per_decade=2)
    unstable = made_up(3000.0)
    shares = {c: np.mean([unstable(c, seed) for seed in range(runs)]) for c in factors}
    found = search(unstable, factors, runs)
    assert found.factor == max(c for c, share in shares.items() if share >= 0.1)
    assert found.status == "found"


def test_a_search_stops_when_it_knows():
    calls = []

    def unstable(factor, seed):
        calls.append((factor, seed))
        return factor == 10 and seed in (0, 3)

    found = search(unstable, [1.0, 10.0, 100.0], runs=20)
    assert found.factor == 10
    assert calls == [(100, seed) for seed in range(19)] + [(10, seed) for seed in range(4)]
    assert [(trial.factor, trial.unstable, trial.runs) for trial in found.trials] == [
        (100, 0, 19),
        (10, 2, 4),
    ]


def test_a_search_that_ends_at_either_end_of_the_grid_says_so():
    never = search(lambda factor, seed: False, [1.0, 10.0], runs=20)
    assert (never.factor, never.status) == (None, "below 1")
    always = search(lambda factor, seed: True, [1.0, 10.0], runs=20)
    assert (always.factor, always.status) == (10.0, "not bounded by the grid")


def test_the_grid_goes_from_1_to_at_most_10_d():
    assert grid(12, per_decade=1) == [1, 10, 100]
    np.testing.assert_allclose(grid(12, per_decade=2), [1, 10**0.5, 10, 10**1.5, 100])
    assert grid(1, per_decade=2)[-1] == 10


def xor(units):
    return Setup(Benchmark(f"XOR {units}", "xor", (2, units, 2)))


def test_setups_count_their_parameters_and_state_their_horizon():
    assert xor(100).parameters == xor(100).benchmark.network(0).parameters == 502
    assert (xor(100).horizon, xor(500_000).horizon) == (1000, 3200)


def test_xor_explodes_without_a_slow_start_and_learns_with_a_long_one(fresh_seed):
    assert is_unstable(xor(300), 1.0, fresh_seed)
    assert not is_unstable(xor(300), 10_000.0, fresh_seed)


def made_up_study(setup, factor, seed, stop):
    return factor * (seed + 1) <= setup.parameters


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_search_killed_after_any_run_goes_on_the_same(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(outcomes, "is_unstable", made_up_study)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    expected = study.make(whole, quick=True, only="xor", jobs=1).numbers
    for call in (1, 7, 30):
        with monkeypatch.context() as patched:
            killed_in(patched, outcomes, "is_unstable", call)
            with pytest.raises(SystemExit):
                study.make(cut, quick=True, only="xor", jobs=jobs)
    assert study.make(cut, quick=True, only="xor", jobs=jobs).numbers == expected
    monkeypatch.setattr(outcomes, "is_unstable", None)  # all is known by now
    assert study.make(cut, quick=True, only="xor").numbers == expected


@pytest.mark.slow
def test_the_critical_c_does_not_depend_on_the_number_of_jobs(tmp_path):
    found = []
    for jobs in (1, 4, None):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        found.append(study.make(folder, quick=True, only="xor", runs=6, jobs=jobs).numbers)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "damaged"), ('{"definition": 0, "numerics": 0, "unstable": {}}', "version")],
)
def test_outcomes_that_cannot_be_used_are_named(content, words, tmp_path):
    (tmp_path / "critical-runs.json").write_text(content)
    with pytest.raises(InputError, match=rf"critical-runs\.json .*{words}"):
        study.make(tmp_path, quick=True, only="xor")


@pytest.mark.usefixtures("_tiny_data")
def test_benchmarks_and_marks_without_a_value_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(outcomes, "is_unstable", lambda setup, c, seed, stop: setup.name == "C0")
    picture = study.make(tmp_path, quick=True, runs=1)
    status = {row["name"]: row["status"] for row in picture.numbers["setups"]}
    assert status.pop("C0") == "not bounded by the grid"
    assert set(status.values()) == {"below 1"}
    picture.save(tmp_path)


@pytest.mark.subprocess
def test_critical_prints_nothing_but_json(tmp_path):
    arguments = ["--quick", "--runs", "1", "--only", "xor", "--json", "--out", str(tmp_path)]
    result = pesky_command("figure", "critical", *arguments, PESKY_DATA="")
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout)
    assert [row["layers"][1] for row in numbers["setups"]] == [2, 10, 100, 1000]
    assert "unstable" in numbers["definition"]
    assert numbers["setups"][-1]["critical"] >= 100


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["epochs", "--epochs", "0"], ["--epochs", "0"]),
        (["epochs", "--hidden", "-3"], ["--hidden", "-3"]),
        (["epochs", "--seed", "-1"], ["--seed", "-1"]),
        (["epochs", "--out", ""], ["--out"]),
        (["epochs", "--data", "/no/such/folder"], ["/no/such/folder"]),
        (["critical", "--runs", "0"], ["--runs", "0"]),
        (["critical", "--jobs", "-1"], ["--jobs", "-1"]),
        (["critical", "--only", "and"], ["--only", "xor"]),
        (["epochs"], ["mnist", "pesky data fetch"]),
        (["critical"], ["mnist", "pesky data fetch"]),
    ],
)
def test_bad_input_and_missing_data_are_one_line(arguments, words, tmp_path):
    home = str(tmp_path / "nobody")
    result = pesky_command("figure", *arguments, cwd=tmp_path, PESKY_DATA="", XDG_CACHE_HOME=home)
    assert_one_clear_line(result, *words)


@pytest.mark.subprocess
def test_ctrl_c_says_that_the_same_command_goes_on(tmp_path):
    command = [*COMMAND, "figure", "critical", "--only", "xor", "--out", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "critical-runs.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=600)[1]
    assert process.returncode == 130
    assert "goes on" in said
    assert "Traceback" not in said
    assert json.loads((tmp_path / "critical-runs.json").read_text())["unstable"]["XOR 2"]
