"""The data sets: checked against their published sums, preprocessed as the paper says."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.lab import datasets, paper
from pesky.lab.benchmarks import BENCHMARKS, METHODS, method_named
from tests.real_data import needs_data


def test_digits_needs_no_folder_and_has_the_stated_split():
    data = datasets.load("digits")
    assert (len(data.train_inputs), len(data.test_inputs)) == (1438, 359)
    assert data.train_inputs.dtype == np.float32
    np.testing.assert_allclose(data.train_inputs.mean(axis=0), 0, atol=1e-6)
    assert np.ptp(data.train_inputs, axis=0).max() == 1.0
    assert set(data.test_labels) == set(range(10))


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "inputs"), [("mnist", 60_000, 784), ("cifar10", 10_000, 3072)]
)
def test_real_data_has_the_papers_sizes_and_zero_mean(name, train, inputs):
    data = datasets.load(name)
    assert data.train_inputs.shape == (train, inputs)
    assert data.test_inputs.shape == (10_000, inputs)
    np.testing.assert_allclose(data.train_inputs.mean(axis=0, dtype=np.float64), 0, atol=1e-5)
    assert np.abs(data.test_inputs).max() <= 1.0
    assert np.bincount(data.train_labels, minlength=10).min() > 0.08 * train


@pytest.fixture
def copy_of_data(tmp_path):
    folder = Path(os.environ["PESKY_DATA"])
    (tmp_path / "mnist").mkdir()
    for file in datasets.FILES["mnist"]:
        shutil.copyfile(folder / file.path, tmp_path / file.path)
    return tmp_path


@needs_data
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_file_is_named(copy_of_data, damage):
    path = copy_of_data / "mnist" / "t10k-labels-idx1-ubyte.gz"
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif damage == "truncate":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\.gz"):
        datasets.load("mnist", copy_of_data)


def test_a_missing_folder_and_an_unknown_name_are_told(monkeypatch, tmp_path):
    monkeypatch.delenv("PESKY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"pesky data fetch mnist.*PESKY_DATA"):
        datasets.load("mnist")
    with pytest.raises(InputError, match="nowhere"):
        datasets.load("mnist", tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"imagenet.*mnist"):
        datasets.load("imagenet")


def test_the_papers_tables_fit_the_benchmarks():
    assert (
        set(paper.TRAIN) == set(paper.TEST) == set(paper.BEST_SETTINGS) == set(BENCHMARKS) - {"digits"}
    )
    assert sum(len(row) for row in paper.TRAIN.values()) == 39
    assert sum(len(row) for row in paper.TEST.values()) == 39
    for benchmark, row in paper.BEST_SETTINGS.items():
        assert {"vsgd-l", "vsgd-b", "vsgd-g", *row} == set(paper.TRAIN[benchmark])
        for method, settings in row.items():
            assert method_named(method, settings, 100).name == method


def test_methods_are_made_from_text_and_bad_text_is_named():
    assert method_named("sgd", {"eta0": "3e-2", "gamma": "1/3"}, 300).gamma == pytest.approx(1 / 900)
    assert {method_named(name, {}, 1).granularity for name in METHODS[:3]} == {
        "element",
        "block",
        "global",
    }
    for name, settings, words in [
        ("adam", {}, "adam"),
        ("sgd", {"eta0": "1"}, "gamma"),
        ("sgd", {"eta0": "fast", "gamma": "0"}, "fast"),
        ("sgd", {"eta0": "1/0", "gamma": "0"}, "1/0"),
        ("vsgd-l", {"eta0": "1"}, "eta0"),
    ]:
        with pytest.raises(InputError, match=words):
            method_named(name, settings, 100)
