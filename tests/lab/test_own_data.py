"""A user's own file as a benchmark: what is read from it, and what is said of one that cannot be."""

import json

import numpy as np
import pytest

from pesky.cli import run
from pesky.errors import InputError
from pesky.lab.own_data import own_benchmark
from pesky.lab.pages.report import report_page
from pesky.lab.race.rows import Store
from tests.commands import assert_one_clear_line, pesky_command
from tests.lab.own_files import samples, written_csv, written_npz
from tests.lab.race.toys import toy_task

LAYERS = (6, 5, 3)
SMALL = ("--methods", "vsgd-b,adagrad", "--grid", "coarse", "--seeds", "2")


@pytest.fixture
def own_csv(tmp_path):
    return written_csv(tmp_path / "mine.csv", *samples())


def test_every_fifth_sample_tests_and_inputs_are_less_their_training_mean(own_csv):
    inputs, labels = samples()
    benchmark, task = own_benchmark(own_csv, LAYERS)
    assert (benchmark.name, benchmark.layers, benchmark.loss) == ("mine.csv", LAYERS, "cross-entropy")
    kept = [i for i in range(200) if i % 5 != 4]
    np.testing.assert_array_equal(task.train_targets, labels[kept])
    np.testing.assert_array_equal(task.test_targets, labels[4::5])
    mean = inputs[kept].mean(axis=0)
    np.testing.assert_allclose(task.train_inputs, inputs[kept] - mean, atol=1e-6)
    np.testing.assert_allclose(task.test_inputs, inputs[4::5] - mean, atol=1e-6)
    assert task.train_inputs.dtype == np.float32


def same(one, other):
    assert all(
        np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )
    return True


@pytest.mark.parametrize("names", [("X", "y"), ("x", "Y")])
def test_arrays_and_lines_say_the_same(own_csv, tmp_path, names):
    path = written_npz(tmp_path / "mine.npz", **dict(zip(names, samples(), strict=True)))
    assert same(own_benchmark(path, LAYERS)[1], own_benchmark(own_csv, LAYERS)[1])


def test_names_of_columns_blank_lines_and_spaces_are_passed_over(own_csv, tmp_path):
    inputs, labels = samples()
    path = written_csv(tmp_path / "named.csv", inputs, labels, header="a,b,c,d,e,f,kind")
    path.write_text("\ufeff" + path.read_text().replace(",", " , ") + "\n\n", encoding="utf-8")
    assert same(own_benchmark(path, LAYERS)[1], own_benchmark(own_csv, LAYERS)[1])


def test_a_file_may_bring_its_own_test_samples_and_images(tmp_path):
    task = toy_task()
    path = written_npz(
        tmp_path / "split.npz",
        x_train=task.train_inputs.reshape(-1, 2, 3),
        y_train=task.train_targets[:, None],
        x_test=task.test_inputs.reshape(-1, 2, 3),
        y_test=task.test_targets,
    )
    _, read = own_benchmark(path, LAYERS)
    assert (read.train_inputs.shape, read.test_inputs.shape) == ((200, 6), (150, 6))
    np.testing.assert_array_equal(read.train_targets, task.train_targets)
    np.testing.assert_array_equal(read.test_targets, task.test_targets)


@pytest.mark.parametrize(
    "names", [["ant", "bee", "cow"], ["-1", "2", "10"], ["1.0", "2", "3e0"], ["2", "two", "zwei"]]
)
def test_classes_are_numbered_in_their_order_whatever_they_are_called(own_csv, tmp_path, names):
    inputs, labels = samples()
    path = written_csv(tmp_path / "called.csv", inputs, [names[label] for label in labels])
    assert same(own_benchmark(path, LAYERS)[1], own_benchmark(own_csv, LAYERS)[1])


GOOD = "1,2,a\n" * 4 + "3,4,b\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no samples"]),
        ("x,y,class\n", ["no samples"]),
        ("1;2;a\n", ["line 1", "commas"]),
        ("1,2,a\n1,a\n", ["line 2", "2 values", "3"]),
        ("1,2,a\n1,,b\n", ["line 2", "''"]),
        ("1,,a\n1,2,b\n", ["line 1", "''"]),
        ("1,2,a\n1,zwei,b\n", ["line 2", "'zwei'"]),
        ("1,2,a\n1,2,\n", ["line 2", "class", "missing"]),
        ("x,y,class\n1,2,a\n1,nan,b\n", ["sample 2", "NaN"]),
        ("1,2,a\n1,1e39,b\n", ["sample 2", "3e38"]),
        ("1,2,1\n1,2,nan\n", ["class", "NaN"]),
        ("1,2,a\n3,4,b\n", ["2 samples", "5"]),
        ('1,2,"a\n', ["CSV"]),
        (GOOD, ["--layers", "7,5,3", "2 inputs", "2 classes", "2,5,2"]),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_one_clear_line(text, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = "7,5,3" if text == GOOD else "2,5,2"
    (tmp_path / "seed.csv").write_text(text)
    assert run(["race", "seed.csv", "--layers", layers]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    for word in ("seed.csv", *words):
        assert word in said
    assert "--seed.csv" not in said


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.zeros(3)}, ["X_train", "it has a"]),
        ({}, ["it has nothing"]),
        ({"X": np.zeros((9, 2))}, ["must hold", "it has X"]),
        ({"X": np.zeros(9), "y": np.zeros(9)}, ["shape (9,)"]),
        ({"X": np.array([["a", "b"]] * 9), "y": np.zeros(9)}, ["numbers"]),
        ({"X": np.zeros((9, 2)), "y": np.zeros(8)}, ["one class a sample", "9 samples"]),
        ({"X": np.zeros((9, 2)), "y": np.zeros((9, 2))}, ["shape (9, 2)"]),
        ({"X": np.full((9, 2), np.inf), "y": np.zeros(9)}, ["sample 1", "infinity"]),
        ({"X": np.zeros((0, 2)), "y": np.zeros(0)}, ["shape (0, 2)"]),
        ({"X": np.zeros((9, 2)), "y": np.array([None] * 9)}, ["NPZ"]),
        (
            {
                "X_train": np.zeros((9, 2)),
                "y_train": np.zeros(9),
                "X_test": np.zeros((9, 3)),
                "y_test": np.zeros(9),
            },
            ["2 and 3 inputs"],
        ),
    ],
)
def test_what_is_wrong_with_arrays_is_told(arrays, words, tmp_path):
    path = written_npz(tmp_path / "mine.npz", **arrays)
    with pytest.raises(InputError) as caught:
        own_benchmark(path, (2, 2))
    for word in ("mine.npz", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04 cut short", None])
@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_files_that_are_none_are_told(content, suffix, tmp_path):
    path = tmp_path / f"mine.{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=rf"mine\.{suffix}"):
        own_benchmark(path, (2, 2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.csv"], ["--layers", "mine.csv", "20,50,3"]),
        (["digits", "--layers", "64,10"], ["--layers", "digits", "leave it out"]),
        (["mine.csv", "--layers", "6,x,3"], ["--layers", "6,x,3"]),
        (["mine.csv", "--layers", "6"], ["--layers", "'6'"]),
        (["mine.csv", "--layers", "6,0,3"], ["--layers", "6,0,3"]),
        (["mine.csv", "other/mine.csv", "--layers", "6,3"], ["mine.csv", "other/mine.csv", "rename"]),
        (["none.csv", "--layers", "6,3"], ["no file none.csv"]),
        (["mine.txt", "--layers", "6,3"], ["mine.txt", ".npz", ".csv"]),
        (["mine.csv", "--layers", "6,3", "--grid", "paper"], ["mine.csv", "--grid"]),
    ],
)
@pytest.mark.usefixtures("own_csv")
def test_what_a_user_gets_wrong_is_one_clear_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["race", *arguments]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    for word in words:
        assert word in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


@pytest.mark.subprocess
def test_a_race_on_a_file_beside_a_benchmark_and_its_report(own_csv, tmp_path):
    arguments = [own_csv.name, "digits", "--layers", "6,5,3", *SMALL, "--json"]
    result = pesky_command("race", *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    tables = json.loads(result.stdout)["benchmarks"]
    assert set(tables) == {"mine.csv", "digits"}
    rows = {row["method"]: row for row in tables["mine.csv"]}
    assert set(rows) == {"vsgd-b", "adagrad"}
    assert rows["adagrad"]["tuning_samples"] <= 2 * 9 * 6 * 160
    assert 0 <= rows["vsgd-b"]["test"]["mean"] < 40
    with Store(tmp_path / "pesky-race.sqlite") as store:
        keys = {(key.benchmark, key.layers) for key, _ in store.rows()}
        page = report_page(store)
    assert keys == {("mine.csv", "6-5-3"), ("digits", "64-30-10")}
    assert '<th scope="row">mine.csv 6-5-3</th>' in page
    assert "<b>mine.csv 6-5-3</b><dl><dt>untuned</dt><dd>vSGD-b <span>" in page
    assert 'aria-label="mine.csv 6-5-3: all settings"' in page


@pytest.mark.subprocess
def test_files_of_one_name_are_told_apart_in_the_report(own_csv, tmp_path):
    arguments = [own_csv.name, *SMALL, "--json"]
    for layers in ("6,5,3", "6,3"):
        assert pesky_command("race", *arguments, "--layers", layers, cwd=tmp_path).returncode == 0
    inputs, labels = samples()
    written_csv(own_csv, 2 * inputs, labels)
    assert pesky_command("race", *arguments, "--layers", "6,3", cwd=tmp_path).returncode == 0
    with Store(tmp_path / "pesky-race.sqlite") as store:
        data = {key.layers: set() for key, _ in store.rows()}
        for key, _ in store.rows():
            data[key.layers].add(key.data)
        page = report_page(store)
    assert {layers: len(sums) for layers, sums in data.items()} == {"6-5-3": 1, "6-3": 2}
    assert '<th scope="row">mine.csv 6-5-3</th>' in page
    for checksum in data["6-3"]:
        assert f'<th scope="row">mine.csv 6-3 cross-entropy {checksum[:6]}</th>' in page


@pytest.mark.subprocess
def test_figures_and_the_reproduction_pass_over_files_of_ones_own(own_csv, tmp_path):
    layers = ("--layers", "6,3")
    assert pesky_command("race", own_csv.name, *layers, *SMALL, cwd=tmp_path).returncode == 0
    assert_one_clear_line(pesky_command("figure", "errors", cwd=tmp_path), "pesky race M0")
    result = pesky_command("reproduction", cwd=tmp_path)
    assert result.returncode == 0
    assert "mine.csv" not in result.stdout
