"""What README and docs show is true: their Python runs, files exist, numbers are those of the rows."""

import csv
import re
import statistics
import sys
import tomllib
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import pytest

import pesky
from pesky.lab.race.grids import settings_of
from pesky.lab.torch_table.splits import DEVELOPMENT, FIRST
from tests.examples import examples_in, promised_by

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# As the README calls them: the method and its setting in the rows.
UNTUNED = {
    "VSGD": ("vsgd", "dialect=robust"),
    "Prodigy+Schedule-Free": ("prodigy-plus", "lr=1"),
    "DoG": ("dog", "lr=1"),
    "Schedule-Free": ("schedule-free", "lr=2.5e-3"),
    "Adam": ("adam", "lr=1e-3"),
    "AdamW": ("adamw", "lr=1e-3"),
    "Prodigy": ("prodigy", "lr=1"),
    "MoMo-Adam": ("momo", "lr=1e-2"),
}
COLUMNS = ["VSGD", "Prodigy+Schedule-Free", "DoG", "Schedule-Free", "Adam"]  # of its table
TASKS = {
    "LeNet, MNIST (%)": "lenet",
    "MLP, MNIST, batch 64 (%)": "mlp-64",
    "MLP, MNIST, batch 1024 (%)": "mlp-1024",
    "ResNet, part of CIFAR-10 (%)": "resnet",
    "ViT, MNIST (%)": "vit",
    "GPT-2, text": "gpt2",
    "T5, text": "t5",
    "LSTM, text": "lstm",
}
SYNTHETIC = {"regression", "quadratic"}  # of the first tasks
PAPER_YEAR = "2013"


EXAMPLES = [
    pytest.param(example, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, example in enumerate(examples_in(page))
]


def test_the_readme_has_a_short_example():
    assert len(examples_in(ROOT / "README.md")[0].splitlines()) <= 10


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run_and_print_what_they_say(example, capsys):
    for module in re.findall(r"^(?:from|import) (\w+)", example, flags=re.MULTILINE):
        pytest.importorskip(module)  # PyTorch is not everywhere
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == promised_by(example)


def test_links_pictures_and_make_targets_exist():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README) + re.findall(r'src="([^"]+)"', README)
    for target in targets:
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


# From here on: numbers. Rows are read as plain CSV, without the code that pages are made with.


@lru_cache
def rows():
    """The rows of each method's newest revision, by task, method and setting."""
    csv.field_size_limit(sys.maxsize)
    with (ROOT / "results/torch-table.csv").open(encoding="utf-8", newline="") as file:
        stored = list(csv.DictReader(file))
    newest = defaultdict(int)
    for row in stored:
        newest[row["method"]] = max(newest[row["method"]], int(row["revision"]))
    found = defaultdict(list)
    for row in stored:
        if int(row["revision"]) == newest[row["method"]]:
            found[row["task"], row["method"], row["settings"]].append(row)
    return dict(found)


def real_tasks():
    """Those of the picture on real data; the tuned have run the first tasks alone."""
    return [task for task in FIRST if task not in SYNTHETIC]


def mean(task, title, number="test"):
    return statistics.fmean(float(row[number]) for row in rows()[(task, *UNTUNED[title])])


def tuned(task, *methods):
    """Each rate's test number at the seed that all of them have run."""
    return {
        (method, setting): float(row["test"])
        for (of_task, method, setting), of_setting in rows().items()
        if of_task == task and method in methods
        for row in of_setting
        if row["seed"] == "0" and row["test"]
    }


def worst_multiple(title, tasks):
    """How far off at most, over the tasks, from the best of the untuned and of all tuned rates."""
    return max(
        mean(task, title)
        / min(*(mean(task, other) for other in UNTUNED), *tuned(task, "sgd", "adam").values())
        for task in tasks
    )


def average_rank(title, number):
    def rank(task):
        others = [mean(task, other, number) for other in UNTUNED if other != title]
        mine = mean(task, title, number)
        return 1 + sum(other < mine for other in others) + sum(other == mine for other in others) / 2

    return statistics.fmean(rank(task) for task in DEVELOPMENT)


def slowdown(task):
    return mean(task, "VSGD", "seconds") / mean(task, "Adam", "seconds")


def tuned_sgd(task):
    """The mean over all seeds of the rate that was best at the first."""
    rates = tuned(task, "sgd")
    chosen = rows()[(task, *min(rates, key=rates.get))]
    assert len(chosen) == 3
    return statistics.fmean(float(row["test"]) for row in chosen)


def statements():
    """The README's sentences with results, as the rows have them."""
    nearest = min(worst_multiple(title, real_tasks()) for title in UNTUNED if title != "VSGD")
    (seeds,) = {len(rows()[(task, *setting)]) for task in DEVELOPMENT for setting in UNTUNED.values()}
    methods = ("sgd", "adagrad", "smd", "amari", "almeida")
    settings = sum(len(settings_of(method, "full", "digits")) for method in methods)
    return [
        f"The picture shows {len(FIRST)} tasks",
        f"never more than {worst_multiple('VSGD', real_tasks()):.1f} times the best",
        f"its untuned rivals is at least {nearest:.1f} times off on one",
        f"batches of 64 ({tuned_sgd('mlp-64'):.2f} against {mean('mlp-64', 'VSGD'):.2f} %)",
        f"mean of {seeds} seeds",
        f"races vSGD against {settings} settings",
    ]


def flat(text):
    return re.sub(r"\s+", " ", text)


def test_sentences_have_the_numbers_of_the_rows():
    for statement in statements():
        assert flat(README).count(statement) == 1, statement


def test_who_is_said_to_be_ahead_is_ahead():
    for title, task in (
        *(("DoG", task) for task in ("lenet", "mlp-1", "mlp-64")),
        *(("Schedule-Free", task) for task in ("lenet", "resnet")),
    ):
        assert mean(task, title) < mean(task, "VSGD"), (title, task)
    for task in DEVELOPMENT:
        assert mean(task, "VSGD", "train") <= mean(task, "Adam", "train"), task
    assert tuned_sgd("mlp-64") < mean("mlp-64", "VSGD")
    assert max(FIRST, key=slowdown) == "softmax-1"


def prose():
    """The README's text without code, tags, addresses and tables, as paragraphs and items of lists."""
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|<[^>]*>|\]\([^)]*\)|^\|.*$|^#.*$", "", text, flags=re.MULTILINE)
    return [flat(part) for part in re.split(r"\n\s*\n|\n- ", text) if part.strip()]


def numbers_in(text):
    return re.findall(r"\d[\d.,]*(?<![.,])", text)


def test_no_other_number_stands_in_the_text():
    text = " ".join(prose())
    for statement in statements():
        text = text.replace(statement, "")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest_python = project["requires-python"].removeprefix(">=")
    assert sorted(numbers_in(text)) == sorted([PAPER_YEAR, oldest_python])
    assert f"pesky-{pesky.__version__}-py3-none-any.whl" in README


def test_a_sentence_has_at_most_three_numbers():
    for part in prose():
        for sentence in re.split(r"(?<=[.!?])\s", part):
            assert len(numbers_in(sentence)) <= 3, sentence


def result_table():
    lines = [line for line in README.splitlines() if line.startswith("|")]
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return header[1:], {name: cells for name, *cells in body}


def cells(numbers):
    """Return numbers as the table shows them: three digits, the lowest bold."""
    shown = [f"{number:#.3g}".rstrip(".") for number in numbers]
    return [f"**{one}**" if x == min(numbers) else one for x, one in zip(numbers, shown, strict=True)]


def test_the_table_has_the_numbers_of_the_rows():
    titles, lines = result_table()
    assert titles == COLUMNS
    expected = {name: cells([mean(task, title) for title in titles]) for name, task in TASKS.items()}
    for number, line in {
        "test": f"average rank on all {len(DEVELOPMENT)} tasks",
        "train": "the same by training loss",
    }.items():
        expected[line] = cells([average_rank(title, number) for title in titles])
    assert lines == expected
