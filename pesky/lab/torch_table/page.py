"""The page that shows the table: made from a store, never edited."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from pesky.lab.runs.means import PARTS, Part
from pesky.lab.tables.markdown import markdown_table
from pesky.lab.tables.table import NOTHING, Table
from pesky.lab.torch_table.ablation_page import ablation_section
from pesky.lab.torch_table.contestants import CONTESTANTS
from pesky.lab.torch_table.rows import Store
from pesky.lab.torch_table.scores_page import failures_section, scores_section, test_split_section
from pesky.lab.torch_table.table import (
    TUNING_SEED,
    Standing,
    TaskRows,
    TorchTable,
    average_ranks,
)

__all__ = ["ranks_table", "torch_page"]

_INTRODUCTION = """# VSGD and its rivals in PyTorch

Made by `{command}`; not edited by hand.
{quick}
Each number is the mean over seeds {seeds} with its standard error, of the model as a user has it
after the loop. At a seed all contestants have the same start and the same batches. The training loss
is measured in evaluation mode on up to 10,000 training samples (text: 256 windows). Seconds are of one
core, evaluations left out. Where the optimum is known, both numbers are the expected loss above it.
Diverged: the loss is not finite any more. Too slow: stopped after ten times Adam's seconds,
or 20 seconds if that is more.

Nothing is set for the untuned: VSGD through `minimize` and through `backward(loss)`, Adam and AdamW at
torch's default rate, DoG with its average, and the others as their authors say. The tuned are at the
best of {grid} rates by the test number at seed {tuning_seed}, which is among the seeds shown; both
favour them. The tuned and the paper's own rule are run on the first tasks alone, and are not ranked.
"""
_QUICK = """
**A quick table: a tenth of the steps.** It says that everything works, not who is better.
"""

Standings = dict[str, list[Standing]]


def torch_page(
    table: TorchTable, store: Store, command: str, figures: Iterable[tuple[str, PurePosixPath]] = ()
) -> str:
    """Return the page as Markdown; `figures` are names of tasks, or "fan", with their pictures."""
    pictures = dict(figures)
    every = table.standings(store)
    standings, test_split = (
        {task.name: every[task.name] for task in table.tasks if task.split == split}
        for split in ("development", "test")
    )
    rows = [one for one in table.rows(store) if one.task.name in standings and _is_begun(every, one)]
    tuned = [len(one.settings) for one in CONTESTANTS.values() if one.is_tuned]
    parts = [
        _INTRODUCTION.format(
            command=command,
            quick=_QUICK if table.quick else "",
            seeds=", ".join(str(seed) for seed in range(table.seeds)),
            grid=min(tuned),
            tuning_seed=TUNING_SEED,
        ),
        "## Failures\n",
        failures_section(standings),
        "## Scores of the development split\n",
        scores_section(standings),
        *(["## Test split\n", test_split_section(test_split)] if test_split else []),
        *_picture(pictures, "fan", "VSGD with nothing set between the rates of Adam and SGD"),
        "## VSGD robust and Adam's default\n",
        _against_adam(standings),
        "## Average rank of the untuned\n",
        _ranks(standings),
        "## Every task\n",
        *(
            part
            for one in rows
            for part in (
                _task(one, standings[one.task.name]),
                *_picture(pictures, one.task.name, f"{one.task.name}: loss against steps and seconds"),
            )
        ),
        "## What each part contributes\n",
        ablation_section(table, store),
        "## What tuning cost\n",
        _costs(standings),
        "## What has not been run\n",
        _missing(standings, test_split, table.quick),
    ]
    return "\n".join(parts)


def _is_begun(standings: Standings, rows: TaskRows) -> bool:
    return any(one.is_begun for one in standings[rows.task.name])


def _picture(pictures: dict[str, PurePosixPath], name: str, caption: str) -> list[str]:
    return [f"![{caption}]({pictures[name]})\n"] if name in pictures else []


def _against_adam(standings: Standings) -> str:
    pairs = {task: (_named(rows, "vsgd"), _named(rows, "adam")) for task, rows in standings.items()}
    rows, won = [], dict.fromkeys(PARTS, 0)
    compared = 0
    for task, (ours, theirs) in pairs.items():
        if ours is None or theirs is None or not (ours.runs and theirs.runs):
            continue
        compared += 1
        line = [task]
        for part in PARTS:
            won[part] += _is_as_good(ours, theirs, part)
            line += [_cell(ours, part), _cell(theirs, part), _verdict(ours, theirs, part)]
        rows.append(line)
    header = ["", "loss, VSGD", "Adam", "as good?", "test, VSGD", "Adam", "as good?"]
    counts = f"At least as good as Adam's default: training loss on {won['train']}, test number on "
    counts += f"{won['test']} of {compared} tasks that both have run, {len(standings)} in all.\n"
    return markdown_table(Table(header, rows)) + "\n" + counts


def _named(rows: list[Standing], name: str) -> Standing | None:
    return next((one for one in rows if one.contestant.name == name), None)


def _is_as_good(ours: Standing, theirs: Standing, part: Part) -> bool:
    return ours.number(part) is not None and ours.place(part) <= theirs.place(part)


def _verdict(ours: Standing, theirs: Standing, part: Part) -> str:
    if _is_as_good(ours, theirs, part):
        return "yes"
    mine, other = ours.number(part), theirs.number(part)
    if mine is None or other is None or ours.diverged or ours.too_slow:
        return "**no**, too slow" if ours.too_slow else "**no**, diverged"
    apart = mine.mean - other.mean
    text = f"**no**, {100 * apart / abs(other.mean):+.1f} %" if other.mean else "**no**"
    within = apart <= 2 * (mine.error**2 + other.error**2) ** 0.5
    return text + (" (within two standard errors)" if within else "")


def ranks_table(standings: Standings) -> tuple[Table, list[str]]:
    """Return the average ranks of the untuned, best first, and the tasks that they are over."""
    (by_loss, tasks), (by_test, _) = (average_ranks(standings, part) for part in PARTS)
    rows = [
        (CONTESTANTS[name].title, f"{rank:.2f}", f"{by_test[name]:.2f}")
        for name, rank in by_loss.items()
    ]
    return Table(("", "by training loss", "by test number"), rows), tasks


def _ranks(standings: Standings) -> str:
    ranks, tasks = ranks_table(standings)
    if not tasks:
        return "No task has been run by all of them.\n"
    return (
        markdown_table(ranks)
        + f"\nOver {len(tasks)} of {len(standings)} tasks, those that all of them have run: "
        + f"{', '.join(tasks)}. 1 is the best; diverged in any run is last.\n"
    )


def _task(rows: TaskRows, standings: list[Standing]) -> str:
    task = rows.task
    lines = [
        [
            one.contestant.title,
            _cell(one, "train"),
            _cell(one, "test"),
            NOTHING if one.seconds is None else f"{one.seconds:.3g}",
            _runs(one),
            one.setting or NOTHING,
        ]
        for one in standings
    ]
    header = ["", "training loss", task.test, "seconds a run", "runs", "setting"]
    return (
        f"### {task.name}\n\n{task.title}; {rows.steps} steps, data `{rows.data or 'not here'}`.\n\n"
        + markdown_table(Table(header, lines))
    )


def _cell(standing: Standing, part: Part) -> str:
    if standing.setting is None and standing.is_complete:
        return "all settings diverged"
    number = standing.number(part)
    failed = [("diverged", standing.diverged), ("too slow", standing.too_slow)]
    words = [(word, len(runs)) for word, runs in failed if runs]
    if number is None:
        return " or ".join(word for word, _ in words) or "not run"
    return ", ".join(
        [str(number), *(f"{count} of {len(standing.runs)} {word}" for word, count in words)]
    )


def _runs(standing: Standing) -> str:
    at = [str(run.diverged_at) for run in standing.diverged]
    if standing.setting is None:
        return f"grid: {len(standing.tuning)} of {standing.tuning_wanted}"
    text = str(len(standing.runs))
    if len(standing.runs) < standing.wanted:
        text += f" of {standing.wanted}"
    return text + (f"; diverged at step {', '.join(at)}" if at else "")


def _costs(standings: Standings) -> str:
    rows = [
        [
            task,
            one.contestant.title,
            f"{len(one.tuning)} of {one.tuning_wanted}",
            f"{sum(run.steps_done for run in one.tuning):,}",
            f"{sum(run.seconds for run in one.tuning):.3g}",
            _winner(one),
        ]
        for task, of_task in standings.items()
        for one in of_task
        if one.contestant.is_tuned and one.tuning
    ]
    if not rows:
        return "Nothing has been tuned.\n"
    return markdown_table(Table(("", "method", "runs", "steps", "seconds", "winner"), rows))


def _winner(standing: Standing) -> str:
    if standing.setting is None:
        return NOTHING
    grid = standing.contestant.settings
    return standing.setting + " (edge of the grid)" * (standing.setting in (grid[0], grid[-1]))


def _missing(standings: Standings, test_split: Standings, quick: bool) -> str:
    """Return the commands that run what is missing, one for all tasks that lack the same."""
    command = "pesky torch-table" + " --quick" * quick
    tasks: dict[str, list[str]] = {}  # by the contestants that they lack
    for task, of_task in standings.items():
        absent = ",".join(one.contestant.name for one in of_task if not one.is_complete)
        if absent:
            tasks.setdefault(absent, []).append(task)
    lines = [
        f"- {', '.join(of_them)}: `{command} --tasks {','.join(of_them)} --contestants {names}`"
        for names, of_them in tasks.items()
    ]
    if not all(one.is_complete for of_task in test_split.values() for one in of_task):
        lines.append(f"- the test split, at the end: `{command} --test-split`")
    return "\n".join(lines or ["Nothing."]) + "\n"
