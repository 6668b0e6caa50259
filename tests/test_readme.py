"""What README and docs show is true: their Python runs, their files and targets exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples_in(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


EXAMPLES = [
    pytest.param(example, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, example in enumerate(examples_in(page))
]


def test_the_readme_has_a_short_example():
    assert len(examples_in(ROOT / "README.md")[0].splitlines()) <= 10


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run_and_print_what_they_say(example, capsys):
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"^print\(.*\)\s+# (.*)$", example, flags=re.MULTILINE)
    assert printed == promised


def test_links_and_make_targets_exist():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
