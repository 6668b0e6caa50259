"""Checkpoints as the first version made them, which every later one must load.

That version wrote `first_version.json` with `COMMAND`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pesky.torch import VSGD

COMMAND = (
    "git worktree add ../first-version 90f7c33 && "
    "PYTHONPATH=../first-version python tests/torch/promise/first_version.py"
)
FILE = Path(__file__).with_name("first_version.json")
FORMS = ("paper", "measuring", "following")
GRANULARITIES = ("element", "block", "global")
CASES = [*((form, granularity) for form in FORMS for granularity in GRANULARITIES), ("rows", "element")]


class Model(nn.Module):
    def __init__(self, by_rows):
        super().__init__()
        self.words = nn.Embedding(4, 3, sparse=by_rows)
        self.head = nn.Linear(3, 2)

    def forward(self, words):
        return self.head(self.words(words).tanh())


def start(form, granularity, seed=0):
    """Return a model and its optimizer."""
    torch.manual_seed(seed)
    model = Model(by_rows=form == "rows")
    dialect = "paper" if form == "paper" else "robust"
    return model, VSGD(model.parameters(), dialect=dialect, granularity=granularity)


def train(form, model, optimizer, steps, seed):
    """Take steps the way that leads to a form; return the losses."""
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        words = torch.randint(0, 4, (8,), generator=generator)
        targets = words % 2

        def closure(words=words, targets=targets):
            return cross_entropy(model(words), targets)

        if form == "following":
            optimizer.zero_grad()
            loss = closure()
            optimizer.backward(loss)
            optimizer.step()
        else:
            loss = optimizer.minimize(closure)
        losses.append(loss.item())
    return losses


def to_plain(value):
    """Return what JSON can hold."""
    if isinstance(value, Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if isinstance(value, dict):
        return {"pairs": [[key, to_plain(one)] for key, one in value.items()]}
    return [to_plain(one) for one in value] if isinstance(value, list | tuple) else value


def from_plain(value) -> Any:
    """Return what `to_plain` was given, tuples as lists."""
    if isinstance(value, dict) and "dtype" in value:
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]))
    if isinstance(value, dict):
        return {key: from_plain(one) for key, one in value["pairs"]}
    return [from_plain(one) for one in value] if isinstance(value, list) else value


def made():
    """Make a checkpoint of every case."""
    found = {}
    for form, granularity in CASES:
        model, optimizer = start(form, granularity)
        train(form, model, optimizer, 45, seed=1)
        both = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        found[f"{form} {granularity}"] = to_plain({name: dict(one) for name, one in both.items()})
    return found


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in made().items()]
    FILE.write_text("{\n" + ",\n".join([f'"made by": {json.dumps(COMMAND)}', *lines]) + "\n}\n")
