"""What the tests of the table share: a task whose runs take milliseconds."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from pesky.lab.torch_models import mlp
from pesky.lab.torch_table.contestants import CONTESTANTS, METHODS
from pesky.lab.torch_table.instance import Instance, Measured, generator, mean_over
from pesky.lab.torch_table.rows import TABLE_VERSION, Row, RunKey
from pesky.lab.torch_table.table import TorchTable
from pesky.lab.torch_table.tasks import Task

STEPS = 30


def toy_data():
    return "toy"


def toy_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def clouds(samples, random):
    labels = torch.randint(3, (samples,), generator=random)
    return torch.randn(samples, 4, generator=random) + 2 * F.one_hot(labels, 4), labels


def toy_instance(seed, folder, norm=False):
    judged = clouds(200, generator(77))
    model = mlp(4, 6, 3)
    if norm:
        model.insert(1, nn.BatchNorm1d(6))

    def evaluate(trained):
        loss = mean_over(toy_loss, trained, judged)
        return Measured(loss, 10 * loss)

    return Instance(model, lambda step: clouds(16, generator(seed, step)), toy_loss, evaluate)


TOY = Task("toy", "A toy", STEPS, "ten losses", toy_data, toy_instance)
TOYS = (TOY, replace(TOY, name="other-toy"))
ALL = tuple(CONTESTANTS.values())


def toy_table(*names, seeds=2, tasks=TOYS, **options):
    chosen = tuple(CONTESTANTS[name] for name in names) or ALL
    return TorchTable(tasks, chosen, seeds, **options)


def toy_key(method="adam", settings="lr=1e-3", **changed):
    revision = METHODS[method].revision if method in METHODS else 1
    key = RunKey("toy", "toy", method, settings, STEPS, 0, revision, TABLE_VERSION)
    return key._replace(**changed)


def some_row(train=0.5, test=5.0, diverged_at=None):
    if diverged_at is not None:
        return Row("diverged", None, None, diverged_at, diverged_at, 0.25, "1 0.01 1.1;2 0.02 1e+20")
    return Row("finished", train, test, None, STEPS, 0.5, f"1 0.01 1.1;{STEPS} 0.5 {train}")


def without_times(rows):
    """Rows as they can be compared: seconds are never the same twice."""
    return [(key, row.status, row.train, row.test, row.diverged_at, row.steps_done) for key, row in rows]
