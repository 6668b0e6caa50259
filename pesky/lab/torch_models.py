"""Small models of today; for benchmarks, each with a batch of random data."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "MODELS",
    "Case",
    "CharacterLSTM",
    "CharacterTransformer",
    "ResidualBlock",
    "TiedTransformer",
    "UNet",
    "lenet",
    "mlp",
    "relu_mlp",
    "resnet",
]

_BATCH = 64


class Case(NamedTuple):
    """A model and what it is trained on."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Lay out the block; the way around is a convolution only where shapes differ."""
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add both ways."""
        return F.relu(self.inside(x) + self.around(x))


class CharacterTransformer(nn.Module):
    """A small causal transformer over characters."""

    def __init__(self, symbols: int, width: int, layers: int, length: int) -> None:
        """Lay it out for windows of `length` characters."""
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, symbols)
        self.mask: Tensor
        # Not a part of the state: averages of it, as some make of a model, would be no numbers.
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a row of logits for each character that comes next."""
        hidden = self.layers(self.embedding(x) + self.position, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits.flatten(0, 1)


class TiedTransformer(CharacterTransformer):
    """The same, with its embeddings, of variance 1, for a head: the softmax is saturated at first."""

    def __init__(self, symbols: int, width: int, layers: int, length: int) -> None:
        """Lay it out for windows of `length` characters."""
        super().__init__(symbols, width, layers, length)
        self.head.weight = self.embedding.weight


class CharacterLSTM(nn.Module):
    """A recurrent network over characters."""

    def __init__(self, symbols: int, width: int, hidden: int) -> None:
        """Lay it out; `width` is of the embedding."""
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.recurrent = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, symbols)

    def forward(self, x: Tensor) -> Tensor:
        """Return a row of logits for each character that comes next."""
        hidden, _ = self.recurrent(self.embedding(x))
        logits: Tensor = self.head(hidden)
        return logits.flatten(0, 1)


def lenet() -> nn.Sequential:
    """Two convolutions and two layers, for images of MNIST's size."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def resnet() -> nn.Sequential:
    """Three blocks with batch norm, for images of CIFAR's size."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        ResidualBlock(16, 16, 1),
        ResidualBlock(16, 32, 2),
        ResidualBlock(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def mlp(*sizes: int) -> nn.Sequential:
    """Layers with tanh between them; two sizes are a linear model."""
    return _layers(sizes, nn.Tanh)


def relu_mlp(*sizes: int) -> nn.Sequential:
    """Layers with ReLU between them."""
    return _layers(sizes, nn.ReLU)


def _layers(sizes: Sequence[int], between: Callable[[], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), between()]
    return nn.Sequential(*layers[:-1])


class UNet(nn.Module):
    """Two halvings and two doublings of an image, with ways across; a logit for each pixel."""

    def __init__(self, width: int = 8) -> None:
        """Lay it out for images of one channel, whose sides are multiples of four."""
        super().__init__()
        self.first = _convolutions(1, width)
        self.second = _convolutions(width, 2 * width)
        self.bottom = _convolutions(2 * width, 4 * width)
        self.up_to_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.second_again = _convolutions(4 * width, 2 * width)
        self.up_to_first = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.first_again = _convolutions(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        second = self.second_again(torch.cat((second, self.up_to_second(bottom)), 1))
        logits: Tensor = self.head(self.first_again(torch.cat((first, self.up_to_first(second)), 1)))
        return logits


def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def _lenet_case() -> Case:
    return Case(lenet(), torch.randn(_BATCH, 1, 28, 28), torch.randint(10, (_BATCH,)))


def _resnet_case() -> Case:
    return Case(resnet(), torch.randn(_BATCH, 3, 32, 32), torch.randint(10, (_BATCH,)))


def _mlp_case() -> Case:
    return Case(mlp(784, 500, 300, 10), torch.randn(_BATCH, 784), torch.randint(10, (_BATCH,)))


def _transformer_case() -> Case:
    symbols, length = 100, 64
    model = CharacterTransformer(symbols, 64, 2, length)
    inputs = torch.randint(symbols, (_BATCH, length))
    return Case(model, inputs, torch.randint(symbols, (_BATCH * length,)))


MODELS: dict[str, Callable[[], Case]] = {
    "LeNet": _lenet_case,
    "ResNet": _resnet_case,
    "MLP": _mlp_case,
    "transformer": _transformer_case,
}
