"""Low-rank layers on a model that has been trained on other text, as when a model is fine-tuned."""

import copy
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from pesky.lab.torch_table import text
from pesky.lab.torch_table.huggingface import llama
from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, mean_over
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "LowRank", "adapting"]

_BEFORE = 2014  # seed of the training before, which is the same for all runs
_STEPS_BEFORE = 400
_STEPS = 1000
_RANK = 4
_FACTOR = 2.0  # of what the low-rank part adds
_WINDOWS, _JUDGED = 16, 256


class LowRank(nn.Module):
    """A linear layer that stays as it is, and a product of two small matrices that learns."""

    def __init__(self, layer: nn.Linear, rank: int = _RANK) -> None:
        """Begin with a product of zero, so that nothing changes at first."""
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Add both ways."""
        fixed: Tensor = self.layer(inputs)
        added: Tensor = self.up(self.down(inputs))
        return fixed + _FACTOR * added


def adapting(seed: int, folder: Path | None) -> Instance:
    """Predict characters of text that is turned round, after training on text that is not."""
    found = text.source_text()
    train, held_out = found.train.flip(0), found.held_out.flip(0)
    model = copy.deepcopy(_trained_before()).requires_grad_(False)
    _add_low_rank(model)

    def batch(step: int) -> Batch:
        return _some(train, generator(seed, step))

    judged = [
        text.windows(part, torch.linspace(0, len(part) - text.LENGTH - 1, _JUDGED).long())
        for part in (train, held_out)
    ]

    def evaluate(trained: nn.Module) -> Measured:
        return Measured(*(mean_over(text.next_character, trained, one) for one in judged))

    return Instance(model, batch, text.next_character, evaluate)


@lru_cache(maxsize=1)
def _trained_before() -> nn.Module:
    """Train Llama by Adam, once in a process; random numbers elsewhere are left alone."""
    found = text.source_text()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(_BEFORE)
        model = llama(found.symbols)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for step in range(_STEPS_BEFORE):
            optimizer.zero_grad()
            loss = text.next_character(model, _some(found.train, generator(_BEFORE, step)))
            torch.autograd.backward(loss)
            optimizer.step()
    return model


def _some(part: Tensor, random: torch.Generator) -> Batch:
    starts = torch.randint(len(part) - text.LENGTH, (_WINDOWS,), generator=random)
    return text.windows(part, starts)


def _add_low_rank(model: nn.Module) -> None:
    """Put a low-rank part beside every linear layer but the head."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head":
                setattr(module, name, LowRank(child))


TASKS = (
    Task(
        "lora",
        "Low-rank layers on a trained Llama, for source text that is turned round",
        _STEPS,
        "held-out loss",
        text.checksum,
        adapting,
        package="transformers",
    ),
)
