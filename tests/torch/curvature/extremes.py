"""Operations and small graphs, and numbers to fill them with: flat, sharp, huge and tiny."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

__all__ = ["CASES", "EXTREME", "ORDINARY", "Case", "Fill", "fills", "leaves_of"]

ORDINARY = (0.0, 1e-3, 0.1, 1.0, 4.0, 30.0)
EXTREME = (*ORDINARY, 1e-45, 1e-38, 1e-30, 1e-12, 1e-6, 1e3, 1e6, 1e10, 1e19, 1e25, 1e38)


class Fill(NamedTuple):
    """How a leaf is filled."""

    kind: str
    size: float
    seed: int

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(shape, generator=generator)
        if self.kind == "flat":
            return torch.full(shape, self.size)
        if self.kind == "sharp":  # one entry of the last dimension towers above the others
            places = torch.randint(shape[-1], (*shape[:-1], 1), generator=generator)
            return torch.zeros(shape).scatter_(-1, places, self.size) + 0.1 * noise
        if self.kind == "with zeros":
            return self.size * noise * torch.randint(2, shape, generator=generator)
        if self.kind == "of all sizes":
            exponents = torch.rand(shape, generator=generator) * 2 - 1
            return noise * (self.size or 1.0) ** exponents
        return self.size * noise


def fills(sizes: tuple[float, ...]) -> st.SearchStrategy[Fill]:
    kinds = ("normal", "flat", "sharp", "with zeros", "of all sizes")
    return st.builds(Fill, st.sampled_from(kinds), st.sampled_from(sizes), st.integers(0, 2**16))


class Case(NamedTuple):
    """A loss as a function of leaves of these shapes."""

    loss: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    positive: bool = False  # leaves are made so
    singular: bool = False  # there are points with a finite gradient and an infinite second derivative


def leaves_of(case: Case, filled: list[Fill], dtype: torch.dtype) -> list[Tensor]:
    most = torch.finfo(dtype).max
    values = [
        one.tensor(shape).clamp(-most, most) for one, shape in zip(filled, case.shapes, strict=False)
    ]
    return [(one.abs() if case.positive else one).to(dtype).requires_grad_() for one in values]


LABELS = torch.tensor([0, 2, 1, -100])
CLASS_WEIGHTS = torch.tensor([0.0, 1e-3, 5.0])
HIDDEN = torch.tensor([[False, True, True], [True, True, True], [False, False, False]])  # row 1: all


def squared(y: Tensor) -> Tensor:
    return (y - 1).square().mean()


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return squared((q @ k.mT / 2).softmax(-1) @ v)


def by_hand_and_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / 2).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -math.inf)
    return squared(scores.softmax(-1) @ v)


def attention(backend: nn.attention.SDPBackend, mask: str | None) -> Callable[..., Tensor]:
    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        given = {
            None: {},
            "causal": {"is_causal": True},
            "boolean": {"attn_mask": ~HIDDEN},
            "infinite": {"attn_mask": torch.zeros(3, 3, dtype=q.dtype).masked_fill(HIDDEN, -math.inf)},
        }[mask]
        with nn.attention.sdpa_kernel(backend):
            return squared(F.scaled_dot_product_attention(q, k, v, **given))

    return loss


def entropy(**options: object) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        given = {
            name: one.to(x.dtype) if isinstance(one, Tensor) else one for name, one in options.items()
        }
        return F.cross_entropy(x @ w, LABELS.clamp(min=options.get("ignore_index", -100)), **given)

    return loss


def network(unit: Callable[[Tensor], Tensor]) -> Case:
    return Case(
        lambda x, w, b, v: squared(unit(torch.addmm(b, x, w)) @ v), ((4, 3), (3, 5), (5,), (5, 2))
    )


def recurrent(kind: str) -> Case:
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[kind]

    def loss(x: Tensor, e: Tensor, u: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        # Under autocast the layer wants what another one gave: float32 is refused by some processors.
        inputs = x @ e
        state = torch.zeros(1, 2, 4, dtype=inputs.dtype)
        start = (state, state) if kind == "lstm" else state
        run = getattr(torch, kind)
        return squared(run(inputs, start, [u, w, b, b], True, 1, 0.0, True, False, False)[0] @ v)

    size = 4 * gates
    return Case(loss, ((3, 2, 3), (3, 3), (size, 3), (size, 4), (size,), (4, 2)))


def normalised(norm: Callable[[Tensor, Tensor, Tensor], Tensor], *shape: int) -> Case:
    channels = (shape[1],)
    return Case(lambda x, w, b: squared(norm(x, w, b)), (shape, channels, channels))


def of_one(
    function: Callable[[Tensor], Tensor], *, positive: bool = False, singular: bool = False
) -> Case:
    """A function below a layer."""
    return Case(lambda x, w: squared(function(x) @ w), ((4, 3), (3, 2)), positive, singular)


def of_an_image(function: Callable[[Tensor], Tensor]) -> Case:
    return Case(lambda x: squared(function(x)), ((1, 1, 4, 4),))


def loss_itself(
    function: Callable[[Tensor], Tensor], *, positive: bool = False, singular: bool = False
) -> Case:
    """A loss of products, all of which is outside of any layer."""
    return Case(lambda x, w: function(x * w).mean(), ((4, 3), (4, 3)), positive, singular)


MATH, FUSED = nn.attention.SDPBackend.MATH, nn.attention.SDPBackend.FLASH_ATTENTION
QKV = ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4))

CASES: dict[str, Case] = {
    "attention by hand": Case(by_hand, ((64, 2), (3, 2), (3, 2))),
    "masked attention by hand": Case(by_hand_and_masked, ((3, 2), (3, 2), (3, 2))),
    **{
        f"{name} attention, mask {mask}": Case(attention(backend, mask), QKV)
        for name, backend in (("fused", FUSED), ("plain", MATH))
        for mask in (None, "causal", "boolean", "infinite")
    },
    "cross-entropy": Case(entropy(), ((4, 3), (3, 3))),
    "cross-entropy, smoothed": Case(entropy(label_smoothing=0.1), ((4, 3), (3, 3))),
    "cross-entropy, weighted": Case(
        entropy(weight=CLASS_WEIGHTS, reduction="sum", ignore_index=1), ((4, 3), (3, 3))
    ),
    "cross-entropy of impossible classes": Case(
        lambda x, w: F.cross_entropy((x @ w).masked_fill(HIDDEN[:1], -math.inf), LABELS * 0),
        ((4, 3), (3, 3)),
    ),
    "log of a softmax": loss_itself(lambda z: -(z.softmax(1)[:, 0] + 1e-7).log()),
    "layer on a softmax": Case(lambda x, w: squared((2 * x).softmax(1) @ w), ((64, 3), (3, 2))),
    "layer on a log-softmax": of_one(lambda x: x.log_softmax(1)),
    "logistic": loss_itself(
        lambda z: F.binary_cross_entropy_with_logits(z, torch.eye(4, 3, dtype=z.dtype), reduction="none")
    ),
    "logistic through a sigmoid": loss_itself(
        lambda z: (
            F.binary_cross_entropy(z.sigmoid(), torch.eye(4, 3, dtype=z.dtype), reduction="none")
            if z.isfinite().all()  # else refused
            else z
        )
    ),
    "log of a sigmoid": loss_itself(lambda z: -(z.sigmoid() + 1e-6).log()),
    "logsumexp": loss_itself(lambda z: z.logsumexp(1) - z[:, 0]),
    "layer on a logsumexp": of_one(lambda x: x.logsumexp(0, keepdim=True)),
    "logsumexp with an impossible class": loss_itself(
        lambda z: z.masked_fill(torch.eye(4, 3, dtype=torch.bool), -math.inf).logsumexp(1)
    ),
    "Poisson": loss_itself(lambda z: F.poisson_nll_loss(z, torch.eye(4, 3, dtype=z.dtype))),
    "Huber": loss_itself(lambda z: F.huber_loss(z, torch.ones_like(z), delta=0.1)),
    "learnt variance": Case(
        lambda x, s: F.gaussian_nll_loss(x, torch.ones_like(x), s.exp(), eps=1e-4), ((4, 3), (4, 3))
    ),
    "layer norm": normalised(lambda x, w, b: F.layer_norm(x, (4,), w, b), 3, 4),
    "layer norm of single numbers": normalised(lambda x, w, b: F.layer_norm(x, (1,), w, b), 3, 1),
    "batch norm": normalised(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), 4, 3),
    "batch norm of one sample": normalised(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True), 1, 3, 2, 2
    ),
    "batch norm in evaluation": normalised(
        lambda x, w, b: F.batch_norm(x, 0 * w.detach(), 0 * w.detach(), w, b), 4, 3
    ),
    "group norm": normalised(lambda x, w, b: F.group_norm(x, 2, w, b), 2, 4, 3),
    "root mean square norm": normalised(lambda x, w, b: F.rms_norm(x, (4,), w) + b, 3, 4),
    "networks of tanh": network(torch.tanh),
    "networks of sigmoid": network(torch.sigmoid),
    "networks of gelu": network(F.gelu),
    "networks of silu": network(F.silu),
    "networks of relu": network(F.relu),
    "networks of softplus": network(F.softplus),
    "two sigmoids on top of each other": network(lambda a: (4 * a.sigmoid()).tanh()),
    "LSTM": recurrent("lstm"),
    "GRU": recurrent("gru"),
    "plain recurrent network": recurrent("rnn_tanh"),
    "root": loss_itself(torch.sqrt, positive=True),
    "root of a mean square": loss_itself(lambda z: z.square().mean().sqrt()),
    "root of a rectifier": of_one(lambda x: F.relu(x).sqrt(), singular=True),
    "Charbonnier": loss_itself(lambda z: (z.square() + 1e-12).sqrt()),
    "logarithm": loss_itself(torch.log, positive=True),
    "logarithm below a layer": of_one(torch.log, positive=True),
    "division": Case(lambda x, y: (x / y).square().mean(), ((4, 3), (4, 3))),
    "division below a layer": Case(
        lambda x, y, w: squared((x / (y.square() + 1e-6)) @ w), ((4, 3), (4, 3), (3, 2))
    ),
    "reciprocal": loss_itself(torch.reciprocal),
    "inverse root": loss_itself(torch.rsqrt, positive=True),
    "power 1.5": loss_itself(lambda z: z.abs() ** 1.5, singular=True),
    "power 1.5 of a rectifier": of_one(lambda x: F.relu(x) ** 1.5, singular=True),
    "power 3": of_one(lambda x: x**3),
    "powers of two leaves": Case(
        lambda x, y: (x**y).mean(), ((4, 3), (4, 3)), positive=True, singular=True
    ),
    "exponential": loss_itself(torch.exp),
    "exponential of a root of a logarithm": loss_itself(
        lambda z: (z + 1).log().sqrt().exp(), positive=True
    ),
    "norm": Case(lambda x, w: (x @ w).norm(dim=1).square().mean(), ((4, 3), (3, 2)), singular=True),
    "direction": of_one(lambda x: F.normalize(x, dim=1), singular=True),
    "cosine": Case(lambda x, y: -F.cosine_similarity(x, y).mean(), ((4, 3), (4, 3)), singular=True),
    "deviation": of_one(lambda x: x / (x.std(0) + 1e-6)),
    "product": of_one(lambda x: x.prod(0, keepdim=True)),
    "maximum": of_one(lambda x: x.amax(0, keepdim=True)),
    "pooling by maximum": of_an_image(lambda x: F.max_pool2d(x, 2)),
    "pooling by average": of_an_image(lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "estimated by random signs": of_an_image(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")
    ),
    "convolution": Case(
        lambda x, w, b: squared(F.conv2d(x, w, b, padding=1).tanh()), ((2, 2, 4, 4), (3, 2, 3, 3), (3,))
    ),
    "embedding": Case(
        lambda e, w: F.cross_entropy(
            F.embedding(torch.tensor([[0, 1], [1, 4]]), e).mean(1) @ w, LABELS[1:3]
        ),
        ((5, 3), (3, 4)),
    ),
    "embedding with sparse gradients": Case(
        lambda e, w: squared(F.embedding(torch.tensor([0, 1, 1, 4]), e, sparse=True) @ w),
        ((5, 3), (3, 4)),
    ),
    "shared weights": Case(lambda x, w: squared((x @ w).tanh() @ w), ((4, 3), (3, 3))),
    "penalty": Case(
        lambda x, w: F.cross_entropy(x @ w, LABELS) + 1e-4 * w.square().sum(), ((4, 3), (3, 3))
    ),
}
