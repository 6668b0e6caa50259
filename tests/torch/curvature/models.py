"""Small models of the kinds that people train, each with a loss on random data."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        return F.relu(inside + self.around(x))


def resnet() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return model, F.cross_entropy(model(torch.randn(8, 3, 12, 12)), torch.randint(0, 10, (8,)))


class Characters(nn.Module):
    """A small GPT: embedding, position, causal attention."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.position = nn.Parameter(torch.randn(12, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.layers(self.embedding(x) + self.position, mask=mask, is_causal=True)
        return self.norm(hidden) @ self.embedding.weight.T  # shared with the embedding


def transformer(dropout: float = 0.0) -> tuple[nn.Module, Tensor]:
    model = Characters(dropout)
    logits = model(torch.randint(0, 20, (4, 12)))
    return model, F.cross_entropy(logits.flatten(0, 1), torch.randint(0, 20, (48,)))


class Patches(nn.Module):
    """A small ViT with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16) * 0.1)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1)
        inside = self.norm(tokens)
        return self.head((tokens + self.attention(inside, inside, inside)[0])[:, 0])


def vision_transformer() -> tuple[nn.Module, Tensor]:
    model = Patches()
    logits = model(torch.randn(4, 3, 12, 12))
    return model, F.cross_entropy(logits, torch.randint(0, 10, (4,)), label_smoothing=0.1)


class Recurrent(nn.Module):
    """An embedding, a recurrent layer, a linear one."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layer = kind(8, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(x))[0])


def recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> tuple[nn.Module, Tensor]:
    model = Recurrent(kind)
    logits = model(torch.randint(0, 20, (4, 7)))
    return model, F.cross_entropy(logits.transpose(1, 2), torch.randint(0, 20, (4, 7)))


class Loop(nn.Module):
    """Cells called by hand."""

    def __init__(self, cell: nn.LSTMCell | nn.GRUCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for one in x:
            state = self.cell(one, state)
        return state[0] if isinstance(state, tuple) else state


def cells(cell: nn.LSTMCell | nn.GRUCell) -> tuple[nn.Module, Tensor]:
    model = Loop(cell)
    return model, F.mse_loss(model(torch.randn(6, 4, 5)), torch.randn(4, 7))


class UNet(nn.Module):
    """A convolutional autoencoder with a way across."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(1, 6, 3, padding=1)
        self.down2 = nn.Conv2d(6, 12, 3, 2, 1)
        self.norm = nn.GroupNorm(3, 12)
        self.up = nn.ConvTranspose2d(12, 6, 2, 2)
        self.out = nn.Conv2d(12, 1, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        wide = F.silu(self.down1(x))
        narrow = F.leaky_relu(self.norm(self.down2(wide)), 0.1)
        return self.out(torch.cat([wide, self.up(narrow)], 1)).sigmoid()


def autoencoder() -> tuple[nn.Module, Tensor]:
    model = UNet()
    x = torch.rand(4, 1, 8, 8)
    return model, F.binary_cross_entropy(model(x), x)


class Losses(nn.Module):
    """A graph of losses written by hand on one trunk: classes, a learnt variance, an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.Mish(), nn.RMSNorm(16))
        self.classes = nn.Linear(16, 3)
        self.mean = nn.Linear(16, 2)
        self.log_variance = nn.Linear(16, 2)
        self.scale = nn.Parameter(torch.tensor(2.0))


def hand_written_losses() -> tuple[nn.Module, Tensor]:
    model = Losses()
    hidden = model.trunk(torch.randn(9, 6))
    p = model.classes(hidden).softmax(1)
    classes = -(p[torch.arange(9), torch.randint(0, 3, (9,))] + 1e-7).log().mean()
    mean, log_variance = model.mean(hidden), model.log_variance(hidden)
    regression = ((mean - torch.randn(9, 2)) ** 2 * (-log_variance).exp() + log_variance).mean()
    directions = F.normalize(hidden, dim=1)
    similarity = model.scale * directions @ directions.T
    contrast = (similarity.logsumexp(1) - similarity.diagonal()).mean()
    penalty = sum(one.square().sum() for one in model.parameters())
    return model, classes + 0.5 * regression + 0.1 * contrast + 1e-3 * penalty


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "ResNet with batch norm": resnet,
    "GPT-like transformer": transformer,
    "transformer with dropout": lambda: transformer(0.1),
    "ViT-like transformer": vision_transformer,
    "LSTM": lambda: recurrent(nn.LSTM),
    "GRU": lambda: recurrent(nn.GRU),
    "LSTM cells": lambda: cells(nn.LSTMCell(5, 7)),
    "GRU cells": lambda: cells(nn.GRUCell(5, 7)),
    "U-Net-like autoencoder": autoencoder,
    "hand-written losses": hand_written_losses,
}
