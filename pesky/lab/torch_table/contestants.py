"""Who competes: which settings each is tried at, as its authors say."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from pesky.lab.runs.settings import Settings, parse_settings
from pesky.lab.torch_table.ablation import PARTS
from pesky.lab.torch_table.loops import (
    Ablated,
    Averaged,
    Diverged,
    Familiar,
    Following,
    Minimizing,
    Momo,
    Training,
    TwoModes,
    trained,
)

__all__ = [
    "CONTESTANTS",
    "METHODS",
    "VARIANTS",
    "Contestant",
    "Diverged",
    "Method",
    "Training",
    "begin",
    "warm_up",
]

_WARM_UP_STEPS = 20  # initial batches, and some that move


def _rate(settings: Settings) -> float:
    return float(settings["lr"])


def _adam(model: nn.Module, settings: Settings) -> Training:
    return Familiar(model, torch.optim.Adam(trained(model), lr=_rate(settings), fused=True))


def _adamw(model: nn.Module, settings: Settings) -> Training:
    return Familiar(model, torch.optim.AdamW(trained(model), lr=_rate(settings), fused=True))


def _sgd(model: nn.Module, settings: Settings) -> Training:
    momentum = float(settings["momentum"])
    optimizer = torch.optim.SGD(trained(model), lr=_rate(settings), momentum=momentum, fused=True)
    return Familiar(model, optimizer)


def _prodigy(model: nn.Module, settings: Settings) -> Training:
    package = importlib.import_module("prodigyopt")
    return Familiar(model, package.Prodigy(trained(model), lr=_rate(settings)))


def _schedule_free(model: nn.Module, settings: Settings) -> Training:
    package = importlib.import_module("schedulefree")
    return TwoModes(model, package.AdamWScheduleFree(trained(model), lr=_rate(settings)))


def _prodigy_plus(model: nn.Module, settings: Settings) -> Training:
    package: Any = importlib.import_module("prodigyplus.prodigy_plus_schedulefree")
    # There is one group; that it need not be split would be printed.
    optimizer = package.ProdigyPlusScheduleFree(trained(model), lr=_rate(settings), split_groups=False)
    return TwoModes(model, optimizer)


def _momo(model: nn.Module, settings: Settings) -> Training:
    package = importlib.import_module("momo")
    return Momo(model, package.MomoAdam(trained(model), lr=_rate(settings)))


@dataclass(frozen=True)
class Method:
    """A way to train; `revision` is raised by hand when it changes, so that old rows do not count."""

    begin: Callable[[nn.Module, Settings], Training]
    package: str | None = None  # that it comes with
    distribution: str | None = None  # what to install for it
    revision: int = 1
    takes_sparse: bool = False  # gradients; others are given dense ones

    @property
    def is_installed(self) -> bool:
        """Whether it can be run here."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


METHODS = {
    "vsgd": Method(Minimizing, revision=5, takes_sparse=True),
    "vsgd-backward": Method(Following, revision=4, takes_sparse=True),
    "vsgd-paper": Method(Minimizing, revision=2, takes_sparse=True),
    "vsgd-ablated": Method(Ablated, revision=5, takes_sparse=True),
    "adam": Method(_adam),
    "adamw": Method(_adamw),
    "sgd": Method(_sgd),
    "prodigy": Method(_prodigy, "prodigyopt", "prodigyopt"),
    "dog": Method(Averaged, "dog", "dog-optimizer"),
    "schedule-free": Method(_schedule_free, "schedulefree", "schedulefree"),
    "prodigy-plus": Method(_prodigy_plus, "prodigyplus", "prodigy-plus-schedule-free"),
    "momo": Method(_momo, "momo", "momo-opt"),
}


@dataclass(frozen=True)
class Contestant:
    """A line of the table: a method at one setting, or at the best of several."""

    name: str
    title: str
    method: str
    settings: tuple[str, ...]

    @property
    def is_tuned(self) -> bool:
        """Whether the setting is chosen by results."""
        return len(self.settings) > 1

    @property
    def is_compared(self) -> bool:
        """Whether it is run on every task and ranked: not the tuned, nor the paper's own rule."""
        return not self.is_tuned and self.method != "vsgd-paper"

    @property
    def is_ours(self) -> bool:
        """Whether it is a form of VSGD."""
        return self.method.startswith("vsgd")


_ADAM_RATES = ("3e-5", "1e-4", "3e-4", "1e-3", "3e-3", "1e-2", "3e-2")
_SGD_RATES = ("1e-3", "3e-3", "1e-2", "3e-2", "1e-1", "3e-1", "1")

CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant("vsgd", "VSGD robust", "vsgd", ("dialect=robust",)),
        Contestant("vsgd-backward", "VSGD robust, backward(loss)", "vsgd-backward", ("dialect=robust",)),
        Contestant("vsgd-paper", "VSGD paper", "vsgd-paper", ("dialect=paper",)),
        Contestant("adam", "Adam", "adam", ("lr=1e-3",)),
        Contestant("adamw", "AdamW", "adamw", ("lr=1e-3",)),
        Contestant("prodigy", "Prodigy", "prodigy", ("lr=1",)),
        Contestant("dog", "DoG", "dog", ("lr=1",)),
        Contestant("schedule-free", "Schedule-Free AdamW", "schedule-free", ("lr=2.5e-3",)),
        Contestant("prodigy-plus", "Prodigy+Schedule-Free", "prodigy-plus", ("lr=1",)),
        Contestant("momo", "MoMo-Adam", "momo", ("lr=1e-2",)),
        Contestant(
            "sgd-tuned",
            "SGD with momentum, tuned",
            "sgd",
            tuple(f"lr={rate} momentum=0.9" for rate in _SGD_RATES),
        ),
        Contestant("adam-tuned", "Adam, tuned", "adam", tuple(f"lr={rate}" for rate in _ADAM_RATES)),
    )
}


def _variant(name: str, *left_out: str) -> Contestant:
    title = " and ".join(PARTS[part].title for part in left_out)
    return Contestant(name, title, "vsgd-ablated", (f"dialect=robust without={'+'.join(left_out)}",))


def _measured(name: str, title: str, every: int) -> Contestant:
    return Contestant(name, title, "vsgd", (f"dialect=robust curvature_every={every}",))


# The robust form without some of its parts: these compete with nobody but the whole of it.
VARIANTS = {
    variant.name: variant
    for variant in (
        _measured("every-1", "levels and losses are measured in every step", 1),
        _variant("all-losses", "seldom-losses"),
        _variant("no-levels", "levels"),
        _variant("old-levels", "level-memory"),
        _variant("no-floor", "floor"),
        _variant("flat-curvature", "entries"),
        _variant("no-noise-ratio", "noise-ratio"),
        _variant("no-probes", "probes"),
        _variant("one-probe", "far-probe"),
        _variant("free-growth", "growth-limit"),
        _variant("short-memory", "long-memory"),
        _variant("no-steep-check", "steep-check"),
        _variant("no-shortening", "shortening"),
        _variant("no-undo", "undo"),
        _variant("no-alarm", "alarm"),
        _variant("no-going-back", "going-back"),
        _variant("no-new-start", "new-start"),
        _variant("no-caution", "caution"),
        _variant("no-average", "average"),
        _variant("no-caution-no-average", "caution", "average"),
    )
}


def begin(method: str, settings: str, model: nn.Module) -> Training:
    """Return a method at work on a model, whose gradients are dense unless it takes others."""
    if not METHODS[method].takes_sparse:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.sparse = False
    return METHODS[method].begin(model, parse_settings(settings))


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Have VSGD's kernels compiled, once in a process, so that no run's seconds count it."""
    with torch.random.fork_rng(devices=()):
        model, inputs = nn.Linear(2, 1), torch.randn(4, 2)
        for dialect in ("robust", "paper"):
            training = Minimizing(model, {"dialect": dialect})
            for _ in range(_WARM_UP_STEPS):
                training.step(lambda: model(inputs).square().mean())
