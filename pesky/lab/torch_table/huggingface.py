"""Stock models of transformers from their configurations: nothing set but the size, no file loaded."""

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.lab.torch_table import images, text
from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, losses_of, mean_over
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "Logits", "llama"]

_STEPS = 1500
_WIDTH, _LAYERS, _HEADS = 64, 2, 4
_LENGTH = 32  # of a window that is classified or repaired
_CLASSIFIED = 32  # windows in a batch
_REPAIRED = 16
_JUDGED = 500  # windows or images that a loss is measured on
_FIXED = 2016  # seed of the random numbers that judge
_HIDDEN_SHARE = 0.2  # of the characters to repair
_PIXELS, _PATCH = 28, 4


def _transformers() -> Any:
    return importlib.import_module("transformers")


class Logits(nn.Module):
    """A model of transformers whose output is a row of logits for each thing to predict."""

    def __init__(self, model: Any) -> None:
        """Take the model as its class made it."""
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, over a sequence one row for each place."""
        logits: Tensor = self.model(inputs).logits
        return logits.flatten(0, -2)


class _Repairing(Logits):
    """An encoder of damaged text, and a decoder that says what it was."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits; `inputs` holds the damaged text and what the decoder has said so far."""
        damaged, said = inputs.unbind(1)
        logits: Tensor = self.model(input_ids=damaged, decoder_input_ids=said).logits
        return logits.flatten(0, -2)


def bert() -> nn.Module:
    """Return BERT's classifier."""
    package = _transformers()
    config = package.BertConfig(
        vocab_size=text.source_text().symbols,
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
    )
    return Logits(package.BertForSequenceClassification(config))


def gpt2(symbols: int) -> nn.Module:
    """Return GPT-2, whose head is its embedding."""
    package = _transformers()
    config = package.GPT2Config(
        vocab_size=symbols,
        n_positions=text.LENGTH,
        n_embd=_WIDTH,
        n_layer=_LAYERS,
        n_head=_HEADS,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Logits(package.GPT2LMHeadModel(config))


def llama(symbols: int) -> nn.Module:
    """Return Llama."""
    package = _transformers()
    config = package.LlamaConfig(
        vocab_size=symbols,
        hidden_size=_WIDTH,
        intermediate_size=176,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        use_cache=False,
    )
    return Logits(package.LlamaForCausalLM(config))


def opt(symbols: int) -> nn.Module:
    """Return OPT."""
    package = _transformers()
    config = package.OPTConfig(
        vocab_size=symbols,
        hidden_size=_WIDTH,
        word_embed_proj_dim=_WIDTH,
        ffn_dim=4 * _WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        max_position_embeddings=text.LENGTH,
        use_cache=False,
    )
    return Logits(package.OPTForCausalLM(config))


def vit() -> nn.Module:
    """Return the vision transformer's classifier, for images of MNIST's size."""
    package = _transformers()
    config = package.ViTConfig(
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
        image_size=_PIXELS,
        patch_size=_PATCH,
        num_channels=1,
        num_labels=10,
    )
    return Logits(package.ViTForImageClassification(config))


def t5(symbols: int) -> nn.Module:
    """Return T5."""
    package = _transformers()
    config = package.T5Config(
        vocab_size=symbols,
        d_model=_WIDTH,
        d_kv=_WIDTH // _HEADS,
        d_ff=4 * _WIDTH,
        num_layers=_LAYERS,
        num_heads=_HEADS,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return _Repairing(package.T5ForConditionalGeneration(config))


def finding_brackets(seed: int, folder: Path | None) -> Instance:
    """Tell windows of source text in which a bracket opens from those without; no folder is needed."""
    found = text.source_text()
    bracket = found.alphabet.index("(")

    def some(part: Tensor, samples: int, random: torch.Generator) -> Batch:
        starts = torch.randint(len(part) - _LENGTH, (samples,), generator=random)
        plain, _ = text.windows(part, starts, _LENGTH)
        return plain, (plain == bracket).any(1).long()

    judged, held_out = (some(part, _JUDGED, generator(_FIXED)) for part in (found.train, found.held_out))

    def evaluate(trained: nn.Module) -> Measured:
        return Measured(
            mean_over(images.cross_entropy, trained, judged),
            mean_over(images.percent_wrong, trained, held_out),
        )

    return Instance(
        bert(),
        lambda step: some(found.train, _CLASSIFIED, generator(seed, step)),
        images.cross_entropy,
        evaluate,
    )


def repairing(seed: int, folder: Path | None) -> Instance:
    """Say what a window was of which a fifth of the characters are hidden; no folder is needed."""
    found = text.source_text()
    hidden = found.symbols  # the number of a symbol of its own

    def some(part: Tensor, samples: int, random: torch.Generator) -> Batch:
        starts = torch.randint(len(part) - _LENGTH, (samples,), generator=random)
        plain, _ = text.windows(part, starts, _LENGTH)
        is_hidden = torch.rand(plain.shape, generator=random) < _HIDDEN_SHARE
        said = F.pad(plain[:, :-1], (1, 0), value=hidden)
        return torch.stack((plain.masked_fill(is_hidden, hidden), said), 1), plain

    train, test = (some(part, _JUDGED, generator(_FIXED)) for part in (found.train, found.held_out))
    return Instance(
        t5(found.symbols + 1),
        lambda step: some(found.train, _REPAIRED, generator(seed, step)),
        text.next_character,
        partial(losses_of, text.next_character, train, test),
    )


def _on_text(name: str, title: str, begin: Callable[[int, Path | None], Instance], test: str) -> Task:
    return Task(name, title, _STEPS, test, text.checksum, begin, package="transformers")


_HELD_OUT = "held-out loss"
_CAUSAL = "of transformers on Python source text, 16 x 64 characters a batch"

TASKS = (
    _on_text(
        "bert",
        "BERT of transformers tells in which windows of source text a bracket opens",
        finding_brackets,
        "held-out error, %",
    ),
    _on_text("gpt2", f"GPT-2 {_CAUSAL}", partial(text.predicting, gpt2), _HELD_OUT),
    _on_text("llama", f"Llama {_CAUSAL}", partial(text.predicting, llama), _HELD_OUT),
    _on_text("opt", f"OPT {_CAUSAL}", partial(text.predicting, opt), _HELD_OUT),
    _on_text("t5", "T5 of transformers repairs windows of source text", repairing, _HELD_OUT),
    Task(
        "vit",
        "ViT of transformers on MNIST, batch 16",
        _STEPS,
        "test error, %",
        partial(images.checksum, "mnist"),
        partial(images.classifying, "mnist", vit, 16, (1, _PIXELS, _PIXELS), tested=2000),
        "mnist",
        "transformers",
    ),
)
