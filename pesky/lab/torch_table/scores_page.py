"""The page's sections on scores: failures on top, the development split, and ranks of the test split."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from pesky.lab.runs.means import PARTS, Part
from pesky.lab.tables.markdown import markdown_table
from pesky.lab.tables.table import NOTHING, Table
from pesky.lab.torch_table.contestants import CONTESTANTS
from pesky.lab.torch_table.scores import Failure, Scores, cost_per_step, failures, scores_of
from pesky.lab.torch_table.table import Standing

__all__ = ["failures_section", "scores_section", "test_split_section"]

_PROFILE = (0.01, 0.1, 0.3, 0.5)
_NAMES: Mapping[Part, str] = {"train": "training loss", "test": "test number"}

_FAILURES = """A contestant fails on a task if it diverges or takes more than ten times Adam's seconds in
any run, if it ends above its start, or if it gains less than half of what the median contestant gains,
by the mean training loss. Tasks of the development split; only the untuned are compared.
"""
_SCORES = """A score is (loss - best) / (start - best): 0 is the best contestant of a task, 1 is where
training starts. A column such as "at most 0.1" is the share of tasks with such a score: the higher, the
better. Ranks are averages, 1 is the best; diverged or too slow in any run is last. Tasks that change
are judged by the mean loss over the run. Rows without a measured start take the first batch's loss for
it, and have none of the test number.
"""
_COST = """At equal cost: every contestant after as many passes as Adam's run takes. A forward pass costs
1/3, a backward pass 2/3, a curvature pass 2/3; passes are counted while a run is under way. Tasks that
change are left out: with fewer steps they would be other tasks.
"""
_TEST = """Ten tasks were set aside before any was run: {tasks}. They are run once, at the end; ranks and
counts are all that is shown.
"""

Standings = Mapping[str, Sequence[Standing]]


def failures_section(standings: Standings) -> str:
    """Return who fails where, ours first."""
    found = failures(standings)
    lines = [
        f"- {CONTESTANTS[name].title}: {_tasks_and_reasons(list(of_one))}"
        for name, of_one in groupby(sorted(found, key=_order), key=lambda one: one.contestant.name)
    ]
    ours = [one for one in found if one.contestant.is_ours]
    if not ours and any(one.is_complete for of_task in standings.values() for one in of_task):
        lines.insert(0, "- VSGD in all its forms: none")
    return _FAILURES + "\n" + "\n".join(lines or ["Nothing has been run."]) + "\n"


def _order(failure: Failure) -> int:
    return list(CONTESTANTS).index(failure.contestant.name)


def _tasks_and_reasons(found: Sequence[Failure]) -> str:
    reasons = dict.fromkeys(one.reason for one in found)
    return "; ".join(
        f"{reason}: {', '.join(one.task for one in found if one.reason == reason)}" for reason in reasons
    )


def scores_section(standings: Standings) -> str:
    """Return scores, profiles and ranks by both numbers, at equal steps and at equal cost."""
    parts = [_SCORES]
    for part in PARTS:
        parts += [f"By {_NAMES[part]}, at equal steps:\n", _table(scores_of(standings, part), standings)]
    parts.append(_COST)
    for part in PARTS:
        scores = scores_of(standings, part, equal_cost=True)
        parts += [f"By {_NAMES[part]}, at equal cost:\n", _table(scores, standings)]
    return "\n".join(parts)


def _table(scores: Scores, standings: Standings) -> str:
    if not scores.counted:
        return "No task has been run by all of them with its passes counted.\n"
    header = ["", "average rank", *(f"at most {most:g}" for most in _PROFILE), "cost a step"]
    rows = [
        [
            CONTESTANTS[name].title,
            f"{rank:.2f}",
            *(_percent(scores.share(name, most)) for most in _PROFILE),
            _cost(cost_per_step(standings, name)),
        ]
        for name, rank in scores.ranks.items()
    ]
    return f"{markdown_table(Table(header, rows))}\n{_told(scores)}"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.0f} %"


def _cost(cost: float | None) -> str:
    return NOTHING if cost is None else f"{cost:.2f}"


def _told(scores: Scores) -> str:
    """Say which tasks count, and which do not, and why."""
    sentences = [f"Tasks that count: {len(scores.counted)}."]
    if scores.level:
        sentences.append(f"All end within 2 % on {', '.join(scores.level)}, which do not count.")
    if scores.unfinished:
        sentences.append(f"Not all have run the other {len(scores.unfinished)}, or not with counts.")
    return " ".join(sentences) + "\n"


def test_split_section(standings: Standings) -> str:
    """Return ranks and counts of the test split."""
    told = _TEST.format(tasks=", ".join(standings))
    by_loss, by_test = (scores_of(standings, part) for part in PARTS)
    if not by_loss.counted:
        return told + "\nIt has not been run.\n"
    failed = Counter(one.contestant.name for one in failures(standings))
    header = ["", "rank by training loss", "rank by test number", "tasks it is first on", "failures"]
    rows = [
        [
            CONTESTANTS[name].title,
            f"{rank:.2f}",
            f"{by_test.ranks[name]:.2f}" if name in by_test.ranks else NOTHING,
            str(by_loss.firsts[name]),
            str(failed[name]),
        ]
        for name, rank in by_loss.ranks.items()
    ]
    return f"{told}\n{markdown_table(Table(header, rows))}\n{_told(by_loss)}"
