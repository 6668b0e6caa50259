"""The page and its pictures: every cell is there, and what is missing or diverged says so."""

import math
from pathlib import PurePosixPath

import pytest

from pesky.lab.torch_table.contestants import CONTESTANTS
from pesky.lab.torch_table.drawing import fan, losses, mean_curve
from pesky.lab.torch_table.page import torch_page
from pesky.lab.torch_table.rows import Point, Store
from pesky.lab.torch_table.table import average_ranks
from tests.lab.torch_table.stored import put, section
from tests.lab.toys import STEPS, TOY, some_row, toy_table

COMMAND = "pesky torch-table --out docs"


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.sqlite") as opened:
        yield opened


def put_grid(store, name, best=2, **numbers):
    for place, setting in enumerate(CONTESTANTS[name].settings):
        row = some_row(**numbers, test=1.0 + abs(place - best)) if place < 6 else some_row(diverged_at=9)
        put(store, name, row, setting=setting)


def everything(store):
    """Both toys, with a row for all that the table wants."""
    for task in ("toy", "other-toy"):
        for place, (name, one) in enumerate(CONTESTANTS.items()):
            if one.is_tuned:
                continue
            put(
                store, name, *(some_row(0.1 + place, 1.0 + place + seed) for seed in range(2)), task=task
            )
        for name in ("sgd-tuned", "adam-tuned"):
            for setting in CONTESTANTS[name].settings:
                put(store, name, some_row(0.3, 3.0), some_row(0.5, 4.0), setting=setting, task=task)


def line_of(part, title):
    (line,) = [line for line in part.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_cell_is_there(store):
    everything(store)
    table = toy_table()
    page = torch_page(table, store, COMMAND)
    assert page.startswith("# ")
    assert f"Made by `{COMMAND}`" in page
    for task in ("toy", "other-toy"):
        part = section(page, f"### {task}")
        assert f"{STEPS} steps" in part
        assert "ten losses" in part
        for place, one in enumerate(CONTESTANTS.values()):
            cells = line_of(part, one.title)
            assert len(cells) == 6
            assert cells[3:5] == ["0.5", "2"]
            if not one.is_tuned:
                assert cells[1:3] == [f"{0.1 + place:.4g} ± 0", f"{1.5 + place:.4g} ± 0.5"]
    assert section(page, "## What has not been run").strip() == "Nothing."
    assert page.count("not run") == 0
    assert "training loss on 2, test number on 2 of 2 tasks" in page
    assert "quick" not in page


def test_costs_of_tuning_are_shown_with_the_winner(store):
    put_grid(store, "sgd-tuned")
    put_grid(store, "adam-tuned", best=0)
    page = torch_page(toy_table(tasks=(TOY,), seeds=1), store, COMMAND)
    rows = [line for line in section(page, "## What tuning cost").splitlines() if "tuned" in line]
    assert len(rows) == 2
    for line in rows:
        assert "| 7 of 7 |" in line
        assert f"| {6 * STEPS + 9} |" in line
        assert "| 3.25 |" in line
    assert "lr=1e-2 momentum=0.9 |" in rows[0]
    assert "lr=3e-5 (edge of the grid) |" in rows[1]


def test_what_has_not_been_run_says_so(store):
    put(store, "adam", some_row())
    page = torch_page(toy_table(quick=False), store, COMMAND)
    part = section(page, "### toy")
    assert line_of(part, "Adam")[1:5] == ["0.5", "5", "0.5", "1 of 2"]
    assert line_of(part, "VSGD robust")[1:5] == ["not run", "not run", "–", "0 of 2"]
    assert line_of(part, "Adam, tuned")[4] == "grid: 1 of 7"
    missing = section(page, "## What has not been run")
    for name in CONTESTANTS:
        assert name in missing
    assert "`pesky torch-table --tasks toy,other-toy --contestants vsgd," in missing
    assert "No task has been run by all of them" in page


def test_a_quick_page_says_so(store):
    page = torch_page(toy_table(quick=True), store, COMMAND)
    assert "**A quick table" in page
    assert "`pesky torch-table --quick --tasks toy,other-toy --contestants" in page


def test_divergence_is_shown_and_ranks_last(store):
    put(store, "vsgd", some_row(0.4, 4.0), some_row(0.4, 4.0))
    put(store, "adam", some_row(0.2, 5.0), some_row(diverged_at=17))
    put(store, "dog", some_row(diverged_at=3), some_row(diverged_at=4))
    table = toy_table("vsgd", "adam", "dog", tasks=(TOY,))
    page = torch_page(table, store, COMMAND)
    part = section(page, "### toy")
    assert line_of(part, "Adam")[1] == "0.2, 1 of 2 diverged"
    assert line_of(part, "Adam")[4] == "2; diverged at step 17"
    assert line_of(part, "DoG")[1] == "diverged"
    ranks, tasks = average_ranks(table.standings(store), "train")
    assert ranks == {"vsgd": 1.0, "adam": 2.5, "dog": 2.5}
    assert tasks == ["toy"]
    assert "| yes |" in section(page, "## VSGD robust and Adam's default")


def test_ranks_are_averaged_over_tasks_that_all_have_run_and_ties_are_shared(store):
    for task, numbers in {"toy": (1.0, 1.0, 3.0), "other-toy": (3.0, 2.0, 1.0)}.items():
        for name, train in zip(("vsgd", "adam", "dog"), numbers, strict=True):
            put(store, name, some_row(train), task=task)
    standings = toy_table("vsgd", "adam", "dog", "prodigy", "adam-tuned", seeds=1).standings(store)
    ranks, tasks = average_ranks(standings, "train")
    assert ranks == {"adam": 1.75, "dog": 2.0, "vsgd": 2.25}  # who has run nothing does not count
    assert tasks == ["toy", "other-toy"]
    unfinished = toy_table("vsgd", "adam", "dog", seeds=2).standings(store)
    assert average_ranks(unfinished, "train") == ({}, [])


def test_how_far_vsgd_is_from_adam_is_said(store):
    put(store, "vsgd", some_row(0.6, 5.0), some_row(0.6, 5.2))
    put(store, "adam", some_row(0.5, 5.0), some_row(0.5, 5.1))
    page = torch_page(toy_table("vsgd", "adam", tasks=(TOY,)), store, COMMAND)
    part = section(page, "## VSGD robust and Adam's default")
    assert "**no**, +20.0 % |" in part
    assert "**no**, +1.0 % (within two standard errors) |" in part
    assert "training loss on 0, test number on 0 of 1 tasks" in part


def test_pictures_are_named_where_they_are(store):
    everything(store)
    places = [("fan", PurePosixPath("figures/torch-fan.png")), ("toy", PurePosixPath("a/toy.png"))]
    page = torch_page(toy_table(), store, COMMAND, places)
    assert "](figures/torch-fan.png)" in page
    assert "](a/toy.png)" in section(page, "### toy")
    assert "![" not in section(page, "### other-toy")


def test_losses_are_drawn_against_steps_and_seconds(store, tmp_path):
    everything(store)
    table = toy_table()
    for rows in table.rows(store):
        picture = losses(table, rows)
        assert picture.name == f"torch-{rows.task.name}"
        assert set(picture.numbers["curves"]) == set(CONTESTANTS)
        left, right = picture.figure.axes
        assert len(left.lines) == len(right.lines) == len(CONTESTANTS)
        names = [f"{picture.name}.png", f"{picture.name}.svg", f"{picture.name}-narrow.svg"]
        assert [path.name for path in picture.save(tmp_path)] == names


def drawn_points(axes):
    """Where the picture's marks are, by the names in its legend."""
    return {marks.get_label(): marks.get_offsets().tolist() for marks in axes.collections}


def test_the_fan_has_all_the_untuned_and_every_rate(store):
    assert fan(toy_table(), store) is None
    put_grid(store, "sgd-tuned", best=0)  # the tests are 1 to 6, and one diverged
    put_grid(store, "adam-tuned", best=0)
    assert fan(toy_table(), store) is None  # no VSGD
    for place, (name, one) in enumerate(CONTESTANTS.items()):
        if not one.is_tuned:
            put(store, name, some_row(test=2.0 + place), some_row(test=4.0 + place))
    picture = fan(toy_table(), store)
    (axes,) = picture.figure.axes
    points = drawn_points(axes)
    assert points.pop("each rate of SGD, Adam") == [[x, 0] for x in (1, 2, 3, 4, 5, 6, 10) * 2]
    untuned = [one.title for one in CONTESTANTS.values() if not one.is_tuned]
    expected = {title: min(3 + place, 10) for place, title in enumerate(untuned)}
    expected["Adam"] = (4 + 7) / 2  # its first run is one of the tuned, too, and came first
    assert {title: x for title, [[x, _]] in points.items()} == expected
    assert all(abs(height) < 0.5 for [[_, height]] in points.values())  # on its task's line
    assert [label.get_text() for label in axes.get_yticklabels()] == ["toy"]


def test_the_fan_puts_what_is_far_behind_on_its_edge(store):
    put(store, "vsgd", some_row(test=2.0), some_row(test=2.0))
    put(store, "adam", some_row(test=1.0), some_row(diverged_at=9))  # the first is a tuned rate, too
    put(store, "dog", some_row(test=500.0))
    put(store, "sgd-tuned", some_row(test=3.0))
    picture = fan(toy_table(), store)
    points = drawn_points(picture.figure.axes[0])
    assert [points[title][0][0] for title in ("VSGD robust", "Adam", "DoG")] == [2, 10, 10]
    (task,) = picture.numbers["tasks"]
    assert task["untuned"] == {"vsgd": 2.0, "adam": None, "dog": 500.0}
    assert task["rates"] == {"sgd-tuned": {"lr=1e-3 momentum=0.9": 3.0}, "adam-tuned": {"lr=1e-3": 1.0}}


def test_the_fan_can_be_drawn_where_one_makes_no_error(store):
    for name, test in {"vsgd": 0.0, "adam": 0.5, "sgd-tuned": 0.0}.items():
        put(store, name, some_row(test=test), some_row(test=test))
    points = drawn_points(fan(toy_table(), store).figure.axes[0])
    assert [points[title][0][0] for title in ("VSGD robust", "Adam")] == [1, 10]


def test_nothing_to_draw_is_no_picture(store):
    table = toy_table("adam")
    assert losses(table, table.rows(store)[0]) is None


def test_curves_are_averaged_as_far_as_all_go():
    points = mean_curve([some_row(train=0.5), some_row(train=0.7)])
    assert points == [Point(1, 0.01, 1.1), Point(STEPS, 0.5, pytest.approx(0.6))]
    assert mean_curve([]) == []
    assert math.isfinite(mean_curve([some_row(diverged_at=3)])[-1].loss)
