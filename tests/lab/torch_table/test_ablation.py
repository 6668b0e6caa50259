"""VSGD without some of its parts: each part is really left out, for its own steps, and shown apart."""

import json
import math
import subprocess
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pesky import length, rule
from pesky.cli import run
from pesky.lab.torch_table import ablation, tasks
from pesky.lab.torch_table.ablation import ABLATION_TASKS, PARTS, without
from pesky.lab.torch_table.contestants import CONTESTANTS, METHODS, VARIANTS, begin
from pesky.lab.torch_table.drawing import losses
from pesky.lab.torch_table.page import torch_page
from pesky.lab.torch_table.rows import Store
from pesky.lab.torch_table.workers import workers
from pesky.length import Length
from pesky.torch import stepping
from pesky.torch.passes.bundle import Level
from pesky.torch.step import alarm, direction, measuring
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import Leg
from pesky.torch.stepping import SteppingOptimizer
from tests.commands import assert_one_clear_line
from tests.lab.toys import STEPS, TOY, some_row, toy_instance, toy_key, toy_loss, toy_table

ACCIDENTS = {
    "free-growth",
    "no-undo",
    "no-shortening",
    "no-steep-check",
    "no-alarm",
    "no-going-back",
    "no-new-start",
    "one-probe",
}  # parts that a calm task does not need
EVERYTHING = CONTESTANTS["vsgd"]
HEADING = "## What each part contributes\n"


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "runs.sqlite") as opened:
        yield opened


def begun(variant, model):
    return begin(variant.method, variant.settings[0], model)


# --- What is left out -----------------------------------------------------------------------------


def after_training(variant, steps=250):
    """Return where a variant shows its parameters, and its optimizer."""
    torch.manual_seed(0)
    instance = toy_instance(0, None)
    training = begun(variant, instance.model)
    for step in range(steps):
        training.step(lambda step=step: toy_loss(instance.model, instance.batch(step)))
    shown = nn.utils.parameters_to_vector(instance.model.parameters()).detach()
    return shown, training._optimizer


@pytest.fixture(scope="module")
def whole():
    return after_training(EVERYTHING)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ACCIDENTS])
def test_every_variant_goes_another_way(name, whole):
    shown, _ = after_training(VARIANTS[name])
    assert shown.isfinite().all()
    assert not torch.allclose(shown, whole[0], atol=1e-4)


@pytest.mark.parametrize("name", sorted(ACCIDENTS))
def test_nothing_changes_where_there_is_no_accident(name, whole):
    assert torch.equal(after_training(VARIANTS[name])[0], whole[0])


def test_without_caution_it_stays_1(whole):
    assert whole[1].collective.caution < 1
    assert after_training(VARIANTS["no-caution"])[1].collective.caution == 1


def test_without_the_average_the_iterate_is_visible_and_caution_still_compares(whole):
    assert whole[1].collective.shows_average
    shown, optimizer = after_training(VARIANTS["no-average"])
    iterates = [state["iterate"] for state in optimizer.state.values()]
    assert torch.equal(shown, nn.utils.parameters_to_vector(iterates))
    assert optimizer.collective == with_iterate_visible(whole[1].collective)


def with_iterate_visible(found):
    """The same numbers, with the iterate visible."""
    return Collective.from_dict({**found.as_dict(), "shows_average": False})


def test_both_can_be_left_out():
    _, optimizer = after_training(VARIANTS["no-caution-no-average"])
    assert (optimizer.collective.caution, optimizer.collective.shows_average) == (1, False)


def test_every_1_measures_in_every_step():
    assert after_training(VARIANTS["every-1"], steps=1)[1].curvature_every == 1


def test_memory_and_growth_are_other_numbers_meanwhile():
    known = Length(averaged=1000.0, scale=1.0, slope=1.0, curvature=1e-3)
    with without(["long-memory", "growth-limit"]):
        assert length.memory_of(known) == 20
        length.adapt(known)
    assert known.scale == pytest.approx(1000)
    assert length.memory_of(known) == 70


# --- Directions -----------------------------------------------------------------------------------


def directions(*left_out):
    """Return gradient, g, v, their tensor's level, its mean v before, and the direction of a step."""
    torch.manual_seed(0)
    instance = toy_instance(0, None)
    training = begun(EVERYTHING, instance.model)
    found, before = [], []
    with without(left_out):
        original = measuring.direction_of

        def noted(batches, buffer_of):
            before[:] = [part.state["typical_square"] for batch in batches for part in batch.parts]
            direction = original(batches, buffer_of)
            # The step is taken in the buffers.
            found[:] = [
                direction._replace(
                    legs=[
                        Leg(bundle, directed._replace(values=[one.clone() for one in directed.values]))
                        for bundle, directed in direction.legs
                    ]
                )
            ]
            return direction

        with patch.object(measuring, "direction_of", noted):
            for step in range(12):
                training.step(lambda step=step: toy_loss(instance.model, instance.batch(step)))
    (direction,) = found
    slope = sum(
        float((value * part.gradient).sum())
        for part, value in zip(direction.parts, direction.values, strict=True)
    )
    assert direction.slope == pytest.approx(slope, rel=1e-5)
    averages = ("mean_gradient", "mean_square")
    return [
        (
            part.gradient,
            *(part.state[name] for name in averages),
            part.state["level_square"] ** 0.5,
            typical,
            value,
        )
        for part, typical, value in zip(direction.parts, before, direction.values, strict=True)
    ]


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        ([], lambda d, g, v, level, mean: d * g * g / v / level / (v / mean).clamp(min=1).sqrt()),
        (["levels"], lambda d, g, v, level, mean: d * g * g / v / (v / mean).clamp(min=1).sqrt()),
        (["floor"], lambda d, g, v, level, mean: d * g * g / v / level / (v / mean).sqrt()),
        (["entries"], lambda d, g, v, level, mean: d * g * g / v / level),
        (["noise-ratio"], lambda d, g, v, level, mean: d / level / (v / mean).clamp(min=1).sqrt()),
    ],
)
def test_directions_are_as_their_titles_say(left_out, expected):
    for *known, found in directions(*left_out):
        torch.testing.assert_close(found, expected(*known))


def test_what_has_never_had_a_gradient_does_not_move_without_the_noise_ratio():
    averages, level = torch.tensor([0.0, 1.0]), Level(1.0, 1.0, 1.0)
    assert ablation._noiseless(averages, averages, level).tolist() == [0, 1]


def test_a_step_in_which_all_collect_has_no_direction():
    assert ablation._direction_by(ablation._flat, [], nothing_to_move) == ([], 0.0)


def nothing_to_move(part):
    raise AssertionError(part)


# --- Accidents ------------------------------------------------------------------------------------


class Point(nn.Module):
    """One parameter."""

    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.ones(1))

    def distance(self, centre):
        return (self.place - centre).square().sum() / 2


def calmly(variant, steps=60):
    """Return a point that has been through noise, and who moves it."""
    torch.manual_seed(0)
    point = Point()
    training = begun(variant, point)
    for centre in torch.randn(steps, 1):
        training.step(lambda c=centre: point.distance(c))
    return point, training


def walled(point, around):
    """A loss that is high but for one place."""
    return lambda: point.distance(30.0) + 1e6 * F.relu(abs(point.place - around) - 1e-5).sum()


@pytest.mark.parametrize("name", ["vsgd", "no-shortening"])
def test_a_step_into_a_wall_is_taken_without_shortening(name):
    variant = {"vsgd": EVERYTHING, **VARIANTS}[name]
    point, training = calmly(variant)
    places = training._optimizer.state[point.place]
    before = places["iterate"].clone()
    training.step(walled(point, before))
    moved = abs(float(places["iterate"] - before))
    assert (training._optimizer.collective.shortened == 1) is (name == "vsgd")
    assert (moved < 1e-4) is (name == "vsgd")


def test_a_step_to_no_number_is_shortened_all_the_same():
    point, training = calmly(VARIANTS["no-shortening"])
    places = training._optimizer.state[point.place]
    before = places["iterate"].clone()

    def broken():
        return point.distance(30.0) + (math.inf if abs(point.place - before) > 1e-5 else 0.0)

    training.step(broken)
    assert training._optimizer.collective.shortened == 1
    assert abs(float(places["iterate"] - before)) <= 1e-5


@pytest.mark.parametrize("name", ["vsgd", "no-undo"])
def test_a_step_that_a_fresh_batch_finds_wrong_stays_without_undo(name):
    variant = {"vsgd": EVERYTHING, **VARIANTS}[name]
    point, training = calmly(variant)
    optimizer = training._optimizer
    places = optimizer.state[point.place]
    before = places["average"].clone()
    known = optimizer.collective.loss
    assert abs(float(places["iterate"] - before)) > 1e-3
    training.step(walled(point, before))
    is_undone = bool(torch.equal(places["iterate"], before))
    assert (optimizer.collective.restored == 1) is is_undone is (name == "vsgd")
    assert (optimizer.collective.loss > 2 * known) is (name == "no-undo")


def test_a_loss_that_is_not_finite_is_undone_all_the_same():
    point, training = calmly(VARIANTS["no-undo"])
    places = training._optimizer.state[point.place]

    def broken():
        return point.distance(0.0) * (1.0 if torch.equal(point.place, places["average"]) else math.nan)

    training.step(broken)
    assert training._optimizer.collective.restored == 1
    assert point.place.isfinite().all()


# Whether steps ran away, in which case the average of the iterates is free of the rise.
ALARMS = {"going-back": True, "new-start": False}


def alarmed(variant, ran_away):
    """Return what is known after losses have risen, by steps or by the data."""
    point, training = calmly(variant)
    optimizer = training._optimizer
    places, known = optimizer.state[point.place], optimizer.collective
    high = known.loss + 8 * length.spread(known)

    def risen():
        is_free = ran_away and torch.equal(point.place, places["average"])
        return point.distance(0.0) * 1e-3 + (0.0 if is_free else high)

    for _ in range(6):
        training.step(risen)
    return known


@pytest.mark.parametrize("remedy", ALARMS)
def test_each_remedy_of_an_alarm_can_be_left_out(remedy):
    found = {
        name: alarmed({"vsgd": EVERYTHING, **VARIANTS}[name], ALARMS[remedy])
        for name in ("vsgd", "no-alarm", f"no-{remedy}")
    }
    done = {name: (one.restored, one.changes) for name, one in found.items()}
    assert done == {
        "vsgd": (1, 0) if remedy == "going-back" else (0, 1),
        "no-alarm": (0, 0),
        f"no-{remedy}": (0, 1) if remedy == "going-back" else (0, 0),
    }


@pytest.mark.parametrize("name", ["vsgd", "no-steep-check"])
def test_a_steep_step_is_not_checked_out_of_turn_without_that(name):
    variant = {"vsgd": EVERYTHING, **VARIANTS}[name]
    point, training = calmly(variant, steps=100)
    optimizer = training._optimizer
    while optimizer._is_loss_due():
        training.step(lambda: point.distance(0.0))
    before = optimizer.state[point.place]["iterate"].clone()
    training.step(walled(point, before))
    assert (optimizer.collective.shortened == 1) is (name == "vsgd")


def test_every_loss_is_evaluated_again_without_seldom_losses():
    _, training = calmly(VARIANTS["all-losses"], steps=100)
    optimizer = training._optimizer
    assert optimizer.collective.interval == 1
    assert sum(optimizer.counters["sources"].values()) < 80  # levels are measured as seldom as ever


def test_levels_are_means_over_all_measurements_without_their_short_memory():
    for variant in (EVERYTHING, VARIANTS["old-levels"]):
        _, optimizer = after_training(variant, steps=60)
        measured = sum(optimizer.counters["sources"].values())
        memory = length.FEWEST if variant is EVERYTHING else measured
        for state in optimizer.state.values():
            assert state["level_memory"] == pytest.approx(memory, rel=0.01)


def first_scale(name, loss_of):
    """Return the first scale of a variant on a loss."""
    point = Point()
    training = begun({"vsgd": EVERYTHING, **VARIANTS}[name], point)
    scales = []

    def noted(known, slope, scale):
        scales.append(scale)
        known.scale = scale

    with patch.object(length, "begin", noted):
        for _ in range(11):
            training.step(lambda: loss_of(point))
    (scale,) = scales
    return scale


def test_without_probes_the_first_scale_is_that_of_the_first_one():
    assert first_scale("vsgd", lambda point: point.distance(0.0)) == pytest.approx(1, abs=0.1)
    assert first_scale("no-probes", lambda point: point.distance(0.0)) == length.PROBE


def test_one_probe_does_not_see_the_wall_that_longer_ones_hit():
    def loss(point):
        return point.distance(0.0) + 100 * F.relu(0.95 - point.place).square().sum()

    assert 0.01 <= first_scale("vsgd", loss) < 0.1
    assert first_scale("one-probe", loss) == pytest.approx(1, abs=0.1)


# --- For its own steps only -----------------------------------------------------------------------


def attributes():
    owners = (rule, length, alarm, direction, measuring, stepping, SteppingOptimizer, Collective)
    return [(owner, name, value) for owner in owners for name, value in vars(owner).items()]


@pytest.mark.parametrize("name", [name for name in VARIANTS if not name.startswith("every-")])
def test_everything_is_as_before_after_each_step(name):
    instance = toy_instance(0, None)
    training = begun(VARIANTS[name], instance.model)
    before = attributes()
    changed = []

    def closure():
        changed.append(sum(old[2] is not new[2] for old, new in zip(before, attributes(), strict=True)))
        return toy_loss(instance.model, instance.batch(0))

    def failing():
        raise KeyError

    for _ in range(12):
        training.step(closure)
        assert attributes() == before
    with pytest.raises(KeyError):
        training.step(failing)
    assert attributes() == before
    assert set(changed) == {2 if name == "no-caution-no-average" else 1}


def test_variants_are_known_methods_with_one_setting_of_their_own():
    settings = [(one.method, one.settings) for one in (EVERYTHING, *VARIANTS.values())]
    assert len(set(settings)) == len(settings) == 21
    for name, one in VARIANTS.items():
        assert one.name == name not in CONTESTANTS
        assert one.method in METHODS
        assert not one.is_tuned
    used = " ".join(one.settings[0] for one in VARIANTS.values())
    assert all(part in used for part in PARTS)
    assert set(ABLATION_TASKS) <= set(tasks.TASKS)


# --- The page -------------------------------------------------------------------------------------


def put(store, contestant, *rows, task="toy", seeds=range(9)):
    for seed, row in zip(seeds, rows, strict=False):
        store.finish(toy_key(contestant.method, contestant.settings[0], seed=seed, task=task), row)


def section(page):
    return page.split(HEADING)[1].split("\n#")[0]


def cells(part, name, number="Training loss"):
    """Return what one of the tables has in a line, or below nothing, in its header."""
    table = part.split(f"{number}:\n\n")[1].split("\n\n")[0]
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_an_empty_section_names_its_command(store):
    put(store, EVERYTHING, some_row(), some_row())
    for quick, words in ((False, "--ablation`"), (True, "--ablation --quick`")):
        part = section(torch_page(toy_table(quick=quick), store, "pesky"))
        assert f"`pesky torch-table {words}" in part
        assert "|" not in part


def test_the_section_has_a_line_a_variant_and_a_column_a_task(store):
    put(store, EVERYTHING, some_row(0.1, 1.0), some_row(0.3, 2.0))
    put(store, VARIANTS["no-caution"], some_row(0.5, 3.0), some_row(0.7, 4.0))
    put(store, VARIANTS["no-undo"], some_row(diverged_at=3), some_row(diverged_at=4))
    put(store, VARIANTS["no-floor"], some_row(0.5, 3.0), some_row(diverged_at=4))
    part = section(torch_page(toy_table(), store, "pesky"))
    assert "means over seeds 0, 1, unless" in part
    assert cells(part, "") == cells(part, "", "Test number") == ["toy"]
    assert cells(part, "everything") == ["0.2"]
    assert cells(part, "everything", "Test number") == ["1.5"]
    assert cells(part, "no-caution") == ["0.6"]
    assert cells(part, "no-caution", "Test number") == ["3.5"]
    assert cells(part, "no-undo") == ["diverged"]
    assert cells(part, "no-floor") == ["0.5 \\*"]
    assert cells(part, "every-1") == ["–"]
    assert part.count("\n| ") == 3 * (1 + 1 + len(VARIANTS))
    assert all(f"| {name} | {one.title} |\n" in part for name, one in VARIANTS.items())
    put(store, VARIANTS["every-1"], some_row(0.25, 2.5), task="other-toy")
    part = section(torch_page(toy_table(), store, "pesky"))
    assert cells(part, "") == ["toy", "other-toy, seed 0"]
    assert cells(part, "everything") == ["0.2", "–"]
    assert cells(part, "every-1", "Test number") == ["–", "2.5"]


def test_runs_that_took_too_long_are_told(store):
    slow = replace(some_row(), status="too slow")
    put(store, VARIANTS["no-undo"], slow, slow)
    put(store, VARIANTS["no-floor"], some_row(0.5, 3.0), slow)
    part = section(torch_page(toy_table(), store, "pesky"))
    assert cells(part, "no-undo") == ["too slow"]
    assert cells(part, "no-floor") == ["0.5 \\*"]


def test_a_column_is_over_the_seeds_that_all_its_lines_have(store):
    put(store, EVERYTHING, some_row(0.1, 1.0), some_row(0.3, 2.0), some_row(9.0, 9.0))
    put(store, VARIANTS["no-caution"], some_row(0.5, 3.0), some_row(9.0, 9.0), seeds=(1, 2))
    part = section(torch_page(toy_table(seeds=2), store, "pesky"))
    assert cells(part, "") == ["toy, seed 1"]
    assert cells(part, "everything") == ["0.3"]
    assert cells(part, "no-caution", "Test number") == ["3"]
    put(store, VARIANTS["no-average"], some_row())
    part = section(torch_page(toy_table(seeds=2), store, "pesky"))
    assert cells(part, "") == ["toy, no seed in common"]
    assert cells(part, "everything") == ["–"]


def test_variants_are_nowhere_else(store):
    put(store, EVERYTHING, some_row(0.4), some_row(0.4))
    put(store, CONTESTANTS["adam"], some_row(0.5), some_row(0.5))
    table = toy_table()

    def elsewhere():
        page = torch_page(table, store, "pesky")
        return page.replace(section(page), "")

    def drawn():
        return [
            picture and picture.numbers
            for picture in (losses(table, rows) for rows in table.rows(store))
        ]

    before = elsewhere(), drawn()
    for variant in VARIANTS.values():
        put(store, variant, some_row(0.1, 0.1), some_row(0.1, 0.1))
    assert (elsewhere(), drawn()) == before
    assert cells(section(torch_page(table, store, "pesky")), "no-undo") == ["0.1"]


def test_rows_are_stored_resumed_and_exported_like_others(store, tmp_path):
    table = replace(toy_table(tasks=(TOY,), seeds=1), contestants=tuple(VARIANTS.values()))
    with workers(1) as places:
        table.run(store, places, None)
        rows = store.rows()
        assert len(rows) == len(VARIANTS)
        assert {key.steps for key, _ in rows} == {STEPS}
        table.run(store, places, None)
    assert store.rows() == rows
    store.export(tmp_path / "rows.csv")
    with Store(tmp_path / "other.sqlite") as other:
        other.load(tmp_path / "rows.csv")
        assert other.rows() == rows


# --- The command ----------------------------------------------------------------------------------


@pytest.fixture
def toys_only(tmp_path, monkeypatch):
    """All tasks are toys; eleven there are, ten of them with the names that an ablation is about."""
    toys = [replace(TOY, name=name) for name in (*ABLATION_TASKS, "toy")]
    monkeypatch.setattr(tasks, "TASKS", {toy.name: toy for toy in toys})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys, *arguments):
    code = run(["torch-table", "--jobs", "1", *arguments])
    result = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, result.out, result.err)


@pytest.mark.slow
def test_an_ablation_runs_shows_and_writes_the_full_page(toys_only, capsys):
    command = ("--ablation", "--seeds", "1", "--out", "docs", "--figures")
    result = printed(capsys, *command, "--json")
    assert result.returncode == 0
    found = json.loads(result.stdout)["tasks"]
    assert list(found) == list(ABLATION_TASKS)
    for rows in found.values():
        assert [row["contestant"] for row in rows] == ["vsgd", *VARIANTS]
        assert all(row["complete"] for row in rows)
    assert "210 of 210" in result.stderr
    page = (toys_only / "docs" / "torch.md").read_text()
    assert "`pesky torch-table --ablation --seeds 1 --out docs --figures`" in page
    assert "### toy\n" not in page  # nobody has run it
    assert "- toy: `pesky torch-table --tasks toy " in page
    assert all(one.title in page for one in CONTESTANTS.values())
    part = section(page)
    assert part.count(f"|  | {' | '.join(ABLATION_TASKS)} |\n") == 2
    assert "–" not in part
    drawn = json.loads(result.stdout)["files"]
    assert len([name for name in drawn if name.endswith(".png")]) == len(ABLATION_TASKS)

    # A second time there is nothing to do, and the usual command shows the same section.
    result = printed(capsys, *command)
    assert (result.returncode, result.stderr) == (0, "")
    result = printed(capsys, "--no-run", "--seeds", "1", "--out", "again")
    assert (result.returncode, result.stderr) == (0, "")
    assert "no-caution" not in result.stdout
    assert section((toys_only / "again" / "torch.md").read_text()) == part


def test_variants_and_tasks_can_be_chosen(toys_only, capsys):
    chosen = ("--tasks", "toy", "--contestants", "no-average,every-1", "--seeds", "1")
    result = printed(capsys, "--ablation", *chosen, "--json")
    rows = json.loads(result.stdout)["tasks"]["toy"]
    assert [row["contestant"] for row in rows] == ["every-1", "no-average"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ablation", "--contestants", "no-floor,adam"], ["unknown contestant 'adam'", "no-undo"]),
        (["--ablation", "--tasks", "mlp"], ["unknown task 'mlp'", "mlp-64"]),
        (["--contestants", "no-floor"], ["unknown contestant 'no-floor'", "adam-tuned"]),
    ],
)
def test_unknown_names_are_told_in_one_line(toys_only, capsys, arguments, words):
    assert_one_clear_line(printed(capsys, *arguments), *words)
