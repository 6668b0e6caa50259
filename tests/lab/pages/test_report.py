"""The report: from rows to a page, and the page in a real browser."""

import json
import re
from importlib.resources import files

import pytest

from pesky.cli import run
from pesky.lab.benchmarks import BENCHMARKS, GRANULARITIES, METHOD_TITLES, METHODS
from pesky.lab.pages.report import report_page
from pesky.lab.pages.report.marks import mark
from pesky.lab.pages.reproduction import reproduction_page
from pesky.lab.race.grids import settings_of
from pesky.lab.race.rows import Store
from tests.browser import CHROMIUM, probed
from tests.commands import assert_one_clear_line, pesky_command
from tests.lab.race.made_up import add


def test_the_page_holds_the_pytorch_table_with_ranks_and_curves(store, torch_store):
    page = report_page(store, torch_store=torch_store)
    part = page.split("<h2>In PyTorch, nothing set</h2>")[1]
    cells = ("quadratic", "0.25 ± 0", "3.25 ± 0", "2.5 ± 0.58", "5.5 ± 0.58")
    row, *numbers = cells
    assert f'<th scope="row">{row}</th>' + "".join(f"<td>{cell}</td>" for cell in numbers) in part
    assert "over 1 of 26 tasks" in part
    assert "VSGD robust</th><td>1.00</td><td>1.00</td>" in part
    assert part.count("<figure>") == 1
    assert "lenet" not in part


def test_the_page_says_how_to_get_the_pytorch_table(store):
    assert "Nothing has been run: <code>pesky torch-table</code>" in report_page(store)


def test_the_page_holds_claim_tables_points_and_what_is_missing(store):
    page = report_page(store)
    words = " ".join(re.sub("<.*?>", " ", page).split())
    assert "M0 untuned vSGD-l 7.51 % best of 68 tuned settings" in words
    assert "tuned settings SGD (eta0 3e-7, gamma 0) 9.81 %" in words
    assert "<td><b>7.51 ± 0.00</b><small>7.50</small></td>" in page
    assert '9.81 ± 0.00<span class="star">*</span><small>7.60</small>' in page
    assert page.count('class="star"') == 2  # SGD's train and test error are far from the paper's
    assert page.count("data-tip=") == 61 + 1
    assert "M1: vSGD-l, vSGD-b" in page
    assert "pesky figure rates" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_figures_are_part_of_the_page(store, tmp_path):
    (tmp_path / "rates.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    page = report_page(store, tmp_path)
    assert "data:image/svg+xml;base64," in page
    assert "<code>pesky figure rates</code>" not in page


DRAWN = {
    "idealised": ({"samples": 12}, "mean: 12 samples."),
    "quadratic": ({"steps": 1000, "runs": 1}, "quadratic: 1,000 steps, 1 run."),
    "nonstationary": (
        {"jump": 3.0, "every": 40, "jumps": 2, "runs": 20},
        "jumps: 2 jumps by 3 sigma, 40 steps apart, 20 runs.",
    ),
    "errors-mnist": ({"missing": ["M1"], "M0": {}, "M2": {}}, "MNIST: M0, M2."),
    "rates": ({"runs": 1, "epochs": 1, "C0": {}}, "on C0 and M0: 1 run of 1 epoch."),
    "epochs": (
        {"layers": [784, 100, 10], "epochs": 5, "test": [9.0] * 5},
        "on MNIST: 5 epochs, 100 hidden units.",
    ),
    "critical": ({"setups": [{}] * 6, "runs": 5}, "parameters: 6 setups, 5 runs for each C."),
    "slow-start": (
        {"runs": 1, "factors": [1.0] * 5, "epochs": [1, 3, 6], "M0": {}},
        "start&#x27;s C: M0, 5 values of C, 1 run each.",
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_captions_say_how_much_was_drawn(store, tmp_path, name):
    numbers, words = DRAWN[name]
    (tmp_path / f"{name}.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / f"{name}.json").write_text(json.dumps(numbers))
    (caption,) = re.findall("<figcaption>(.*?)</figcaption>", report_page(store, tmp_path))
    assert caption.endswith(words)


@pytest.mark.parametrize("numbers", [None, "{", "[]", "{}", '{"layers": 3}'])
def test_a_caption_without_numbers_claims_none(store, tmp_path, numbers):
    (tmp_path / "epochs.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    if numbers is not None:
        (tmp_path / "epochs.json").write_text(numbers)
    page = report_page(store, tmp_path)
    assert "<figcaption>A long run of vSGD-l on MNIST.</figcaption>" in page


def test_a_figure_made_by_its_command_is_captioned_by_what_it_drew(store, tmp_path):
    small = ["--runs", "3", "--steps", "20"]
    assert run(["figure", "bowl", *small, "--out", str(tmp_path)]) == 0
    assert "noisy bowl: 20 steps, 3 runs.</figcaption>" in report_page(store, tmp_path)


def test_every_method_has_a_mark_of_its_own_in_the_key():
    assert len({mark(method) for method in METHODS}) == len(METHODS)


def test_the_papers_three_forms_differ_in_shape_and_fill():
    marks = [mark(method) for method in GRANULARITIES]
    assert len({re.sub('class="[^"]*"', "", one) for one in marks}) == 3
    assert [re.findall('class="(vsgd-.)"', one) for one in marks] == [["vsgd-l"], ["vsgd-b"], ["vsgd-g"]]
    style = files("pesky.lab.pages.report").joinpath("style.css").read_text(encoding="utf-8")
    assert len(set(re.findall(r"svg \.vsgd-. \{ fill: (.*?); \}", style))) == 3


def test_an_empty_store_says_what_to_run(tmp_path):
    with Store(tmp_path / "empty.sqlite") as opened:
        assert "pesky race digits" in report_page(opened)
        assert "What has not been run" in reproduction_page(opened, "pesky reproduction")


@pytest.mark.subprocess
def test_commands_write_the_pages(store, torch_store, tmp_path):
    stores = ("--store", str(store.path), "--torch-store", str(torch_store))
    result = pesky_command("report", *stores, "--out", str(tmp_path), "--json")
    assert json.loads(result.stdout)["files"] == [str(tmp_path / "report.html")]
    assert "In PyTorch, nothing set" in (tmp_path / "report.html").read_text()
    result = pesky_command("reproduction", "--store", str(store.path), "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "Table 3" in (tmp_path / "reproduction.md").read_text()
    missing = pesky_command("report", "--store", str(tmp_path / "none.sqlite"), cwd=tmp_path)
    assert_one_clear_line(missing, "none.sqlite", "pesky race")


def test_rows_in_files_are_shown_like_those_in_a_store(
    store, torch_store, tmp_path, capsys, monkeypatch
):
    from pesky.lab.torch_table import rows as torch_rows

    monkeypatch.chdir(tmp_path)
    store.export(tmp_path / "M0.csv")
    with torch_rows.Store(torch_store) as opened:
        opened.export(tmp_path / "torch-table.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    before = {path.name for path in tmp_path.iterdir()}
    named = ["M0.csv", "torch-table.csv", "other.csv"]
    assert run(["report", *named, "--out", "page", "--figures", "none"]) == 0
    (skipped,) = capsys.readouterr().err.splitlines()
    assert skipped.startswith("pesky: other.csv is skipped: its columns are a, b;")
    page = (tmp_path / "page" / "report.html").read_text()
    assert page == report_page(store, None, torch_store, "M0.csv, torch-table.csv")
    assert run(["figure", "errors", "M0.csv", "--out", "drawn"]) == 0
    assert json.loads((tmp_path / "drawn" / "errors-mnist.json").read_text())["missing"] == ["M1", "M2"]
    assert {path.name for path in tmp_path.iterdir()} == before | {"page", "drawn"}


PROBE = """
const point = document.querySelector(".point.winner");
point.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
const tip = document.getElementById("tip");
const shown = tip.hidden ? null : tip.textContent;
const box = tip.getBoundingClientRect();
document.querySelector("h1").dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
const fits = (element) => {
  const {left, right} = element.getBoundingClientRect();
  return left >= 0 && right <= innerWidth;
};
const tables = [...document.querySelectorAll(".wide")].map((table) => {
  const wanted = table.scrollWidth;
  table.scrollLeft = wanted;
  const edge = table.getBoundingClientRect();
  const names = [...table.querySelectorAll("tbody th")].map((name) => name.getBoundingClientRect());
  const last = table.querySelector("tbody tr").lastElementChild.getBoundingClientRect();
  return {
    scrolls: wanted > table.clientWidth,
    namesStay: names.every((name) => Math.abs(name.left - edge.left) < 1),
    endIsReached: last.right <= edge.right + 1,
  };
});
const left = (element) => Math.round(element.getBoundingClientRect().left);
return {
  shown, hidesAgain: tip.hidden, inside: box.left >= 0 && box.right <= innerWidth,
  wide: document.documentElement.scrollWidth, width: innerWidth, tables,
  outside: [...document.querySelectorAll("body > *, li, figure img, .plots svg, footer")].filter(
    (element) => !fits(element)).map((element) => element.outerHTML.slice(0, 80)),
  columns: new Set([...document.querySelectorAll(".plots svg")].map(left)).size,
  broken: [...document.images].filter((image) => !image.naturalWidth).length,
  narrow: [...document.querySelectorAll("picture")].filter(
    (picture) => picture.lastChild.currentSrc === picture.firstChild.srcset).length,
  pictures: document.querySelectorAll("picture").length,
};
"""


def add_everything(store, benchmarks):
    """A result of every method on every benchmark, as wide as tables get."""
    for benchmark in benchmarks:
        for method in METHODS:
            settings = settings_of(method, "full", benchmark)[-1]
            for seed in (0, 1, 100, 101):
                add(store, benchmark, method, settings, seed, 45.6 + seed % 7, 58.33 + seed % 7)


@pytest.mark.subprocess
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_works_in_a_browser(tmp_path, torch_store, width):
    assert run(["figure", "bowl", "--runs", "3", "--steps", "20", "--out", str(tmp_path)]) == 0
    with Store(tmp_path / "race.sqlite") as opened:
        add_everything(opened, BENCHMARKS)
        page = report_page(opened, tmp_path, torch_store)
    found = probed(page, PROBE, width, tmp_path)
    method, settings, errors = found["shown"].split("\n")
    assert method in METHOD_TITLES.values()
    assert settings.startswith(("eta0", "nothing to set"))
    assert errors.startswith("train 4")
    assert found["hidesAgain"]
    assert found["inside"]
    assert found["width"] == width
    assert found["wide"] <= width
    assert found["outside"] == []
    assert found["broken"] == 0
    assert len(found["tables"]) == 6
    assert all(table["namesStay"] and table["endIsReached"] for table in found["tables"])
    is_phone = width == 390
    assert any(table["scrolls"] for table in found["tables"]) == is_phone
    assert (found["columns"] == 1) == is_phone
    assert found["pictures"] == 2
    assert found["narrow"] == (2 if is_phone else 0)
