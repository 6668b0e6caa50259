"""The committed pages are what their commands make from the committed rows."""

import re
from pathlib import Path

import pytest

from pesky.cli import run

ROOT = Path(__file__).parents[3]
COMMITTED = pytest.mark.skipif(
    not (ROOT / "results").is_dir(), reason="results are not part of this copy"
)


@COMMITTED
def test_the_reproduction_is_made_from_the_committed_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "results").glob("*.csv"))
    assert run(["reproduction", *files, "--out", str(tmp_path)]) == 0
    made = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert made == (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")


@COMMITTED
def test_the_pytorch_table_is_made_from_the_committed_rows(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    rows, store = "results/torch-table.csv", str(tmp_path / "torch.sqlite")
    options = ["--no-run", "--load", rows, "--store", store, "--out", str(tmp_path)]
    assert run(["torch-table", *options]) == 0
    made = (tmp_path / "torch.md").read_text(encoding="utf-8")
    committed = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    assert _tables(made) == _tables(committed)


@COMMITTED
@pytest.mark.slow
def test_the_report_is_made_from_the_committed_rows(tmp_path, monkeypatch):
    """All of them: benchmarks, the PyTorch table, the fan and a picture for each task that was run."""
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "results").glob("*.csv"))
    assert run(["report", *files, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r"lowest: \d+ tasks, \d+ runs at rates that were tried\.", page)
    assert "loss against steps and seconds" in page
    assert not re.search(r"\bnan\b", page)


def _tables(page):
    """The tables alone: pictures beside them are drawn at will."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) > 100
    assert not any(re.search(r"\bnan\b", line) for line in lines)
    return lines
