"""Files as a user may bring them: samples of a toy, written as CSV or NumPy's archive."""

import numpy as np

from tests.lab.race.toys import toy_task


def samples():
    task = toy_task()
    return task.train_inputs, task.train_targets


def written_csv(path, inputs, labels, header=""):
    lines = [",".join(map(str, (*row, label))) for row, label in zip(inputs, labels, strict=True)]
    path.write_text("\n".join([header] * bool(header) + lines) + "\n", encoding="utf-8")
    return path


def written_npz(path, **arrays):
    np.savez(path, **arrays)
    return path
