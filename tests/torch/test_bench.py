"""The benchmarks run and give ratios; how large those are is not for a test to say."""

import json

import pytest
import torch
from typer.testing import CliRunner

from pesky.cli import app
from pesky.lab.bench_models import bench_models
from pesky.lab.bench_torch import bench_update


@pytest.fixture(autouse=True)
def threads_are_put_back():
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def test_update_is_timed_beside_adam_and_eager_operations():
    rows = bench_update(repeats=1, sizes=(20_000,))
    sized = [row for row in rows if "parameters" in row]
    assert [row["threads"] for row in sized] == [1, 2]
    for row in sized:
        assert row["vsgd_over_adam"] > 0
        assert row["eager_over_vsgd"] > 0


@pytest.mark.peers
def test_models_are_timed_beside_adam_and_backpack():
    rows = bench_models(repeats=1, names=("MLP",))
    for row in rows:
        assert row["with_bbprop_over_plain"] > 0
        for name in ("paper_step_over_adam_step", "robust_step_over_adam_step"):
            assert row[name] > 0
            assert row[f"{name}_curvature_every_10"] > 0
        assert row["backpack_DiagGGNMC_over_plain"] > 0


@pytest.mark.parametrize("as_json", [True, False])
def test_command_prints_and_writes(monkeypatch, tmp_path, as_json):
    monkeypatch.setattr("pesky.lab.bench_torch.bench_update", lambda **_: [{"vsgd_over_adam": 1.5}])
    monkeypatch.setattr("pesky.lab.bench_models.bench_models", lambda **_: [{"model": "LeNet"}])
    arguments = ["bench", "torch", "--out", str(tmp_path), *(["--json"] if as_json else [])]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "bench-torch.json").read_text())
    assert written["update"] == [{"vsgd_over_adam": 1.5}]
    assert "LeNet" in result.output
