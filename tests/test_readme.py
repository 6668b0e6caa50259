"""What the README shows is true: its Python runs, its files and targets exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_is_a_short_example():
    assert EXAMPLES
    assert len(EXAMPLES[0].splitlines()) <= 10


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
