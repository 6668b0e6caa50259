"""One table, three ways to show it: the same words in each, in the same order."""

import re

import pytest

from pesky.cli.screen import print_table
from pesky.lab.tables.html import html_table
from pesky.lab.tables.markdown import markdown_table
from pesky.lab.tables.table import NOTHING, Cell, Table

ROWS = [
    [Cell("M0 [x]", below="paper"), Cell("7.51", bold=True, below="7.50"), Cell("a < b")],
    ["digits", Cell("23.43", starred=True), "c & d"],
]
TABLE = Table(("", "error", "setting"), ROWS, "Errors", words=(0, 2), note="A star is far away.")


def printed(table, capsys):
    print_table(table)
    return capsys.readouterr().out


def test_a_terminal_shows_every_cell_with_what_is_below_it(capsys):
    lines = printed(TABLE, capsys).splitlines()
    assert lines[0].strip() == "Errors"
    cells = [[part.strip() for part in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert cells == [
        ["M0 [x]", "7.51", "a < b"],
        ["paper", "7.50", ""],
        ["digits", "23.43*", "c & d"],
    ]
    assert lines[-1] == TABLE.note


def test_a_page_in_markdown_has_a_row_for_what_is_below():
    assert markdown_table(TABLE).splitlines() == [
        "|  | error | setting |",
        "|---|---|---|",
        "| M0 [x] | **7.51** | a < b |",
        f"| paper | 7.50 | {NOTHING} |",
        "| digits | 23.43 \\* | c & d |",
    ]


def test_a_page_in_html_names_its_rows_and_escapes_what_is_in_them():
    page = html_table(TABLE)
    assert '<th scope="row">M0 [x]<small>paper</small></th>' in page
    assert '<td><b>7.51</b><small>7.50</small></td><td class="words">a &lt; b</td>' in page
    assert '<td>23.43<span class="star">*</span></td><td class="words">c &amp; d</td>' in page
    assert page.endswith('<p class="note">A star is far away.</p>')
    assert re.findall('aria-label="(.*?)"', page) == ["Errors"]


def test_numbers_are_at_the_right_and_words_at_the_left(capsys):
    table = Table(("name", "number"), [["a", "1"], ["long name", "1000"]])
    first, second = (line for line in printed(table, capsys).splitlines() if line.startswith("│"))
    assert first == "│ a         │      1 │"
    assert second == "│ long name │   1000 │"


def test_a_row_that_does_not_fit_its_header_is_refused():
    with pytest.raises(ValueError, match="a row of 1 cells below a header of 2"):
        Table(("", "a"), [["alone"]])
