"""Who competes: how each takes a step as its authors say, and which settings it is tried at."""

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pesky.lab.runs.settings import Settings, parse_settings
from pesky.lab.torch_table.ablation import PARTS, without
from pesky.torch import VSGD

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

_REFRESHING_PASSES = 50  # schedule-free's authors take as many
_WARM_UP_STEPS = 20  # initial batches, and some that move

Closure = Callable[[], Tensor]


class Diverged(Exception):  # noqa: N818 (not an error)
    """An optimizer refuses to go on because its numbers are not finite."""


class Training(Protocol):
    """An optimizer at work on a model."""

    def step(self, closure: Closure) -> float:
        """Take a step on the loss that the closure computes; return that loss."""
        ...

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        """Return the model as a user has it after the loop; `passes` are losses of training batches."""
        ...


class _Minimizing:
    """Steps through `minimize`."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self._model = model
        self._optimizer = VSGD(
            model.parameters(),
            dialect=settings["dialect"],  # type: ignore[arg-type]
            curvature_every=int(every) if (every := settings.get("curvature_every")) else None,
        )

    def step(self, closure: Closure) -> float:
        return float(self._optimizer.minimize(closure))

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        return self._model


class _Ablated(_Minimizing):
    """Steps through `minimize` without some parts."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__(model, settings)
        self._left_out = settings["without"].split("+")

    def step(self, closure: Closure) -> float:
        with without(self._left_out):
            return super().step(closure)


class _Familiar:
    """The loop that everybody writes."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer

    def step(self, closure: Closure) -> float:
        self._optimizer.zero_grad()
        loss = closure()
        torch.autograd.backward(loss)
        self._optimizer.step()
        return float(loss.detach())

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        return self._model


class _Averaged(_Familiar):
    """DoG with the averages of its iterates, which are what is evaluated."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        dog = importlib.import_module("dog")
        # Both first distances are its authors' suggestion.
        first = 1e-4 if _has_batch_norm(model) else 1e-6
        super().__init__(model, dog.DoG(model.parameters(), reps_rel=first, lr=float(settings["lr"])))
        self._averager: Any = dog.PolynomialDecayAverager(model)

    def step(self, closure: Closure) -> float:
        try:
            loss = super().step(closure)
        except AssertionError:  # how it says that gradients are not finite
            raise Diverged from None
        self._averager.step()
        return loss

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        averaged: nn.Module = self._averager.averaged_model
        return averaged


class _ScheduleFree(_Familiar):
    """An optimizer with a mode for training and one for evaluation."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        package = importlib.import_module("schedulefree")
        self._modes: Any = package.AdamWScheduleFree(model.parameters(), lr=float(settings["lr"]))
        super().__init__(model, self._modes)
        self._modes.train()

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        self._modes.eval()
        if _has_batch_norm(self._model):  # its statistics are of other parameters
            with torch.no_grad():
                for one in islice(passes, _REFRESHING_PASSES):
                    one()
        return self._model


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def _adam(model: nn.Module, settings: Settings) -> Training:
    return _Familiar(model, torch.optim.Adam(model.parameters(), lr=float(settings["lr"]), fused=True))


def _sgd(model: nn.Module, settings: Settings) -> Training:
    rate, momentum = float(settings["lr"]), float(settings["momentum"])
    return _Familiar(model, torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, fused=True))


def _prodigy(model: nn.Module, settings: Settings) -> Training:
    package = importlib.import_module("prodigyopt")
    return _Familiar(model, package.Prodigy(model.parameters(), lr=float(settings["lr"])))


@dataclass(frozen=True)
class Method:
    """A way to train; `revision` is raised by hand when it changes, so that old rows do not count."""

    begin: Callable[[nn.Module, Settings], Training]
    package: str | None = None  # that it comes with
    distribution: str | None = None  # what to install for it
    revision: int = 1

    @property
    def is_installed(self) -> bool:
        """Whether it can be run here."""
        return self.package is None or importlib.util.find_spec(self.package) is not None


METHODS = {
    "vsgd": Method(_Minimizing, revision=3),
    "vsgd-paper": Method(_Minimizing, revision=2),
    "vsgd-ablated": Method(_Ablated, revision=3),
    "adam": Method(_adam),
    "sgd": Method(_sgd),
    "prodigy": Method(_prodigy, "prodigyopt", "prodigyopt"),
    "dog": Method(_Averaged, "dog", "dog-optimizer"),
    "schedule-free": Method(_ScheduleFree, "schedulefree", "schedulefree"),
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


_ADAM_RATES = ("3e-5", "1e-4", "3e-4", "1e-3", "3e-3", "1e-2", "3e-2")
_SGD_RATES = ("1e-3", "3e-3", "1e-2", "3e-2", "1e-1", "3e-1", "1")

CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        Contestant("vsgd", "VSGD robust", "vsgd", ("dialect=robust",)),
        Contestant("vsgd-paper", "VSGD paper", "vsgd-paper", ("dialect=paper",)),
        Contestant("adam", "Adam", "adam", ("lr=1e-3",)),
        Contestant("prodigy", "Prodigy", "prodigy", ("lr=1",)),
        Contestant("dog", "DoG", "dog", ("lr=1",)),
        Contestant("schedule-free", "Schedule-Free AdamW", "schedule-free", ("lr=2.5e-3",)),
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
        _measured("every-1", "all is measured in every step", 1),
        _measured("every-10", "curvature is measured in one of 10 steps", 10),
        _variant("no-caution", "caution"),
        _variant("no-average", "average"),
        _variant("no-caution-no-average", "caution", "average"),
        _variant("no-floor", "floor"),
        _variant("flat-curvature", "entries"),
        _variant("no-saturation", "saturation"),
        _variant("no-noise-ratio", "noise-ratio"),
        _variant("short-memory", "long-memory"),
        _variant("free-growth", "growth-limit"),
        _variant("no-undo", "undo"),
        _variant("no-shortening", "shortening"),
        _variant("one-probe", "far-probe"),
    )
}


def begin(method: str, settings: str, model: nn.Module) -> Training:
    """Return a method at work on a model."""
    return METHODS[method].begin(model, parse_settings(settings))


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Have VSGD's kernels compiled, once in a process, so that no run's seconds count it."""
    with torch.random.fork_rng(devices=()):
        model, inputs = nn.Linear(2, 1), torch.randn(4, 2)
        for dialect in ("robust", "paper"):
            training = _Minimizing(model, {"dialect": dialect})
            for _ in range(_WARM_UP_STEPS):
                training.step(lambda: model(inputs).square().mean())
