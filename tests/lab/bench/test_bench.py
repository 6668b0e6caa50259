"""The benchmarks run and give ratios; how large those are is not for a test to say."""

import json

import pytest
import torch
from typer.testing import CliRunner

from pesky.cli import app
from pesky.lab.bench import tables
from pesky.lab.bench.memory import WIDTHS, bench_memory
from pesky.lab.bench.models import bench_models
from pesky.lab.bench.online import SIZES
from pesky.lab.bench.update import bench_update


@pytest.fixture(autouse=True)
def threads_are_put_back():
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def test_update_is_timed_beside_adam_and_eager_operations():
    rows = bench_update(repeats=1, sizes=(20_000,), threads=(1, 2))
    sized = [row for row in rows if "parameters" in row]
    assert [row["threads"] for row in sized] == [1, 2]
    for row in sized:
        assert row["vsgd_over_adam"] > 0
        assert row["eager_over_vsgd"] > 0


@pytest.mark.peers
def test_models_are_timed_beside_adam_and_backpack():
    rows = bench_models(repeats=1, names=("MLP",), with_backpack=True)
    for row in rows:
        assert row["with_bbprop_over_plain"] > 0
        for name in ("paper_step", "robust_step", "first_robust_steps"):
            assert row[f"{name}_over_adam_step"] > 0
        assert row["paper_step_over_adam_step_curvature_every_10"] > 0
        assert row["backpack_DiagGGNMC_over_plain"] > 0


def test_memory_is_told_in_bytes_a_parameter():
    ours, adams = bench_memory(width=256)
    assert ours["parameters"] == adams["parameters"] == 8 * 257 * 256
    assert (round(ours["state_bytes_per_parameter"]), round(adams["state_bytes_per_parameter"])) == (
        16,
        8,
    )
    # The gradient at a second place; with room for signs and activations, which a larger model has too.
    assert 4 <= ours["peak_bytes_per_parameter"] - ours["state_bytes_per_parameter"] < 8
    # A fused step of Adam takes nothing: gradients do not count, nor do those that it began with.
    assert adams["peak_bytes_per_parameter"] - adams["state_bytes_per_parameter"] < 1


def longest():
    """Results whose numbers are as long as any machine may make them."""
    network = dict.fromkeys(tables._NETWORK_ROWS, 12345.678) | {"parameters": 12_345_678}
    online = {
        "networks": {name: network | {"sizes": list(one)} for name, one in SIZES.items()},
        "growth": [{"parameters": 12_345_678, "nanoseconds_per_parameter": 123.456}],
    }
    update = dict.fromkeys(tables._UPDATE, 12345.678) | {"parameters": 10_000_000, "threads": 2}
    tensors = dict.fromkeys(tables._TENSORS, 123.456) | {"tensors": 1000, "threads": 2}
    models = dict.fromkeys((*tables._MODELS, *tables._BACKPACK), 123.456)
    models |= {"model": "transformer", "threads": 2}
    memory = dict.fromkeys(tables._MEMORY, 123.456) | {"optimizer": "VSGD", "parameters": 50_020_000}
    return online, {"update": [update, tensors], "models": [models], "memory": [memory]}


@pytest.mark.parametrize("engine", ["online", "torch"])
def test_tables_fit_a_terminal_of_80_columns(monkeypatch, engine):
    online, of_torch = longest()
    monkeypatch.setattr("pesky.lab.bench.online.bench_online", lambda **_: online)
    monkeypatch.setattr("pesky.lab.bench.update.bench_update", lambda **_: of_torch["update"])
    monkeypatch.setattr("pesky.lab.bench.models.bench_models", lambda **_: of_torch["models"])
    monkeypatch.setattr("pesky.lab.bench.memory.bench_memory", lambda **_: of_torch["memory"])
    result = CliRunner().invoke(app, ["bench", engine])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert sum(line.startswith("┏") for line in lines) == (2 if engine == "online" else 5)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("options", "repeats", "threads"), [((), 5, (1,)), (("--thorough",), 15, (1, 2))]
)
def test_a_thorough_measurement_is_asked_for(monkeypatch, options, repeats, threads):
    asked = []

    def noted(**settings):
        asked.append(settings)
        return []

    monkeypatch.setattr("pesky.lab.bench.update.bench_update", noted)
    monkeypatch.setattr("pesky.lab.bench.models.bench_models", noted)
    monkeypatch.setattr("pesky.lab.bench.memory.bench_memory", noted)
    assert CliRunner().invoke(app, ["bench", "torch", *options]).exit_code == 0
    assert [one["repeats"] for one in asked[:2]] == [repeats] * 2
    assert [one["threads"] for one in asked[:2]] == [threads] * 2
    assert [one["width"] for one in asked[2:]] == list(WIDTHS if options else WIDTHS[:1])
    assert asked[1]["with_backpack"] == bool(options)


@pytest.mark.parametrize("as_json", [True, False])
def test_command_prints_and_writes(monkeypatch, tmp_path, as_json):
    monkeypatch.setattr("pesky.lab.bench.update.bench_update", lambda **_: [{"vsgd_over_adam": 1.5}])
    monkeypatch.setattr("pesky.lab.bench.models.bench_models", lambda **_: [{"model": "LeNet"}])
    monkeypatch.setattr("pesky.lab.bench.memory.bench_memory", lambda **_: [])
    arguments = ["bench", "torch", "--out", str(tmp_path), *(["--json"] if as_json else [])]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "bench-torch.json").read_text())
    assert written["update"] == [{"vsgd_over_adam": 1.5}]
    assert not as_json or json.loads(result.stdout)["models"] == [{"model": "LeNet"}]
