"""The paper's tables with ours beside them, as Markdown."""

import re

import pytest

from pesky.cli import run
from pesky.lab.pages.reproduction import reproduction_page
from tests.commands import assert_one_clear_line, pesky_command


def test_the_reproduction_page_lists_cells_and_misses(store):
    page = reproduction_page(store, "pesky reproduction rows.csv")
    assert "**7.51 ± 0.00**" in page
    assert "9.81 ± 0.00 \\*" in page
    assert re.search(r"- M0, SGD, test: ours 9\.81 .* paper 7\.60, \+29 %", page)
    assert "- M0: vSGD-b, vSGD-g, vSGD robust, AdaGrad" in page


def test_the_reproduction_passes_over_files_with_other_rows_and_says_so(
    store, torch_store, tmp_path, capsys, monkeypatch
):
    from pesky.lab.torch_table import rows as torch_rows

    monkeypatch.chdir(tmp_path)
    store.export(tmp_path / "M0.csv")
    with torch_rows.Store(torch_store) as opened:
        opened.export(tmp_path / "torch-table.csv")
    (tmp_path / "empty.csv").touch()
    files = ["M0.csv", "empty.csv", "torch-table.csv"]
    assert run(["reproduction", *files, "--store", "new.sqlite"]) == 0
    printed = capsys.readouterr()
    assert printed.out == reproduction_page(store, "pesky reproduction M0.csv")
    empty, torch_table = printed.err.splitlines()
    assert empty.startswith("pesky: empty.csv is skipped: it is empty; those wanted are benchmark,")
    assert torch_table.startswith("pesky: torch-table.csv is skipped: its columns are task, data,")


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["other.csv"], ["no file holds rows of pesky race", "other.csv", "a, b", "benchmark"]),
        (["M0.csv", "none.csv"], ["there is no file none.csv"]),
        (["M0.csv", "damaged.csv"], ["damaged.csv is damaged"]),
    ],
)
def test_a_reproduction_without_the_rows_named_is_one_clear_line(store, tmp_path, files, words):
    store.export(tmp_path / "M0.csv")
    (tmp_path / "damaged.csv").write_text((tmp_path / "M0.csv").read_text().replace("finished", "x"))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    made = tmp_path / "made"
    result = pesky_command("reproduction", *files, "--out", str(made), cwd=tmp_path)
    assert_one_clear_line(result, *words)
    assert list(made.iterdir()) == []
