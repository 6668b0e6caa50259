"""``pesky torch-table`` as a user meets it: one JSON object, one clear line, a store to go on from."""

import json
import os
import signal
import subprocess
import time

import pytest

from pesky.cli import run
from pesky.lab.torch_table import contestants
from pesky.lab.torch_table.rows import Store
from tests.commands import COMMAND, assert_one_clear_line, pesky_command

SMALL = ("--tasks", "quadratic", "--contestants", "vsgd,adam", "--seeds", "2", "--quick", "--jobs", "1")


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys, *arguments):
    code = run(["torch-table", *arguments])
    result = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, result.out, result.err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tasks", "lenett"], ["unknown task 'lenett'", "lenet", "quadratic"]),
        (["--contestants", "adam,adan"], ["unknown contestant 'adan'", "sgd-tuned"]),
        (["--seeds", "0"], ["--seeds", "0"]),
        (["--jobs", "-1"], ["--jobs", "-1"]),
        (["--figures"], ["--figures", "--out"]),
        (["--export", "nowhere/rows.csv"], ["--export", "nowhere"]),
        (["--export", "."], ["--export", "folder"]),
        (["--store", "."], ["store", "folder"]),
        (["--no-run", "--load", "nothing.csv"], ["nothing.csv"]),
        (["--tasks", "lenet", "--data", "nowhere"], ["nowhere"]),
    ],
)
def test_what_cannot_work_is_told_in_one_line(in_folder, capsys, arguments, words):
    assert_one_clear_line(printed(capsys, *arguments), *words)


def test_missing_data_is_told_before_any_run(in_folder, capsys, monkeypatch):
    monkeypatch.setenv("PESKY_DATA", str(in_folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_folder))
    result = printed(capsys, "--tasks", "quadratic,lenet", "--jobs", "1")
    assert_one_clear_line(result, "pesky data fetch mnist")
    with Store("pesky-torch.sqlite") as store:
        assert store.rows() == []


def test_a_run_shows_stores_exports_and_draws(in_folder, capsys):
    extra = ["--out", "docs", "--figures", "--export", "rows.csv"]
    result = printed(capsys, *SMALL, *extra, "--json")
    assert result.returncode == 0
    numbers = json.loads(result.stdout)
    assert (numbers["quick"], numbers["seeds"], list(numbers["tasks"])) == (True, 2, ["quadratic"])
    vsgd, adam = numbers["tasks"]["quadratic"]
    assert [vsgd["contestant"], adam["contestant"]] == ["vsgd", "adam"]
    for row in (vsgd, adam):
        assert (row["runs"], row["complete"], row["diverged_at"]) == (2, True, [])
        assert 0 < row["train"]["mean"] == row["test"]["mean"]
    assert numbers["files"] == [
        "rows.csv",
        "docs/torch.md",
        "docs/figures/torch-quadratic.png",
        "docs/figures/torch-quadratic.svg",
        "docs/figures/torch-quadratic-narrow.svg",
    ]
    assert all((in_folder / name).stat().st_size > 0 for name in numbers["files"])
    page = (in_folder / "docs" / "torch.md").read_text()
    words = "pesky torch-table --tasks quadratic --contestants vsgd,adam --seeds 2 --quick --out docs"
    assert f"`{words} --figures`" in page
    assert "](figures/torch-quadratic.png)" in page

    # From the exported rows alone, the same page.
    shown = ("--no-run", "--store", "other.sqlite", "--load", "rows.csv", *SMALL, "--out", "again")
    result = printed(capsys, *shown)
    assert (result.returncode, result.stderr) == (0, "")
    assert "2 of 2" in result.stdout
    again = (in_folder / "again" / "torch.md").read_text()
    assert "--load rows.csv --no-run" in again
    assert again.split("### quadratic")[1].replace("\n", "") in page.replace(
        "![quadratic: loss against steps and seconds](figures/torch-quadratic.png)", ""
    ).replace("\n", "")

    # A second time there is nothing to do.
    result = printed(capsys, *SMALL)
    assert (result.returncode, result.stderr) == (0, "")


def test_no_run_runs_nothing(in_folder, capsys):
    result = printed(capsys, "--no-run", "--out", "docs")
    assert (result.returncode, result.stderr) == (0, "")
    assert "## What has not been run" in (in_folder / "docs" / "torch.md").read_text()


def test_a_contestant_without_its_package_is_skipped_with_a_line(in_folder, capsys, monkeypatch):
    method = contestants.Method(lambda model, settings: None, "no_such_package", "no-such")
    monkeypatch.setitem(contestants.METHODS, "dog", method)
    result = printed(capsys, "--tasks", "quadratic", "--contestants", "dog", "--quick", "--jobs", "1")
    assert result.returncode == 0
    assert result.stderr == "dog is skipped: it needs no-such; run: pip install no-such\n"
    assert "0 of 3" in result.stdout


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path):
    arguments = ["--tasks", "quadratic", "--contestants", "adam,vsgd", "--jobs", "2"]
    process = subprocess.Popen(
        [*COMMAND, "torch-table", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ},
        start_new_session=True,
    )
    with process:
        first = process.stderr.readline()
        assert first.startswith("1 of 3: quadratic adam")  # whose seconds limit the others
        time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from here" in errors
    assert "Traceback" not in errors
    with Store(tmp_path / "pesky-torch.sqlite") as store:
        assert 1 <= len(store.rows()) < 6
    result = pesky_command("torch-table", *arguments[:-1], "1", "--json", cwd=tmp_path)
    assert result.returncode == 0
    (rows,) = json.loads(result.stdout)["tasks"].values()
    assert all(row["complete"] for row in rows)


def test_numbers_of_the_test_split_are_not_shown(in_folder, capsys):
    options = ("--contestants", "adam,momo", "--seeds", "1", "--quick", "--jobs", "1", "--json")
    result = printed(capsys, "--tasks", "flow,quadratic", *options)
    assert result.returncode == 0
    assert list(json.loads(result.stdout)["tasks"]) == ["quadratic"]
    assert "numbers of the test split are not shown (flow)" in result.stderr
    told = [line for line in result.stderr.splitlines() if ": flow " in line]
    assert len(told) == 2
    assert all("finished" in line and "loss" not in line for line in told)


def test_the_test_split_is_run_as_a_whole(in_folder, capsys):
    result = printed(capsys, "--test-split", "--tasks", "flow")
    assert_one_clear_line(result, "--test-split", "--tasks")
    result = printed(capsys, "--test-split", "--no-run", "--out", "docs")
    assert result.returncode == 0
    page = (in_folder / "docs" / "torch.md").read_text()
    assert "`pesky torch-table --test-split --no-run --out docs`" in page
    assert "permuted-mnist" in result.stderr
