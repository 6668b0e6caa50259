"""How each kind of optimizer takes a step, as its authors say, and what its passes cost."""

import importlib
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pesky.lab.runs.settings import Settings
from pesky.lab.torch_table.ablation import without
from pesky.torch import VSGD

__all__ = [
    "Ablated",
    "Averaged",
    "Diverged",
    "Familiar",
    "Following",
    "Minimizing",
    "Momo",
    "Training",
    "TwoModes",
    "step_cost",
    "trained",
]

_REFRESHING_PASSES = 50  # schedule-free's authors take as many

Closure = Callable[[], Tensor]


class Diverged(Exception):  # noqa: N818 (not an error)
    """An optimizer refuses to go on because its numbers are not finite."""


class Training(Protocol):
    """An optimizer at work on a model."""

    cost: float  # of all steps so far: 1 is one forward and one backward pass

    def step(self, closure: Closure) -> float:
        """Take a step on the loss that the closure computes; return that loss."""
        ...

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        """Return the model as a user has it after the loop; `passes` are losses of training batches."""
        ...


def step_cost(evaluations: int, curvature_passes: int) -> float:
    """Return what a step costs: forward 1/3, backward 2/3, as much again for a curvature pass.

    >>> step_cost(evaluations=2, curvature_passes=1)
    2.0
    """
    return (evaluations + 2 + 2 * curvature_passes) / 3


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are to learn."""
    return [one for one in model.parameters() if one.requires_grad]


class _Counted:
    """VSGD at work, with its passes counted."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.cost = 0.0
        self._model = model
        self._optimizer = VSGD(
            trained(model),
            dialect=settings["dialect"],  # type: ignore[arg-type]
            curvature_every=int(every) if (every := settings.get("curvature_every")) else None,
        )
        self._seen = 0  # curvature passes

    def _count(self, evaluations: int) -> None:
        passes = sum(self._optimizer.counters["sources"].values())
        self.cost += step_cost(evaluations, passes - self._seen)
        self._seen = passes

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        """Return the model as it is."""
        return self._model


class Minimizing(_Counted):
    """Steps through `minimize`, which may evaluate a loss again."""

    def step(self, closure: Closure) -> float:
        """Take a step; count how often the closure is called."""
        evaluations = 0

        def counted() -> Tensor:
            nonlocal evaluations
            evaluations += 1
            return closure()

        loss = float(self._optimizer.minimize(counted))
        self._count(evaluations)
        return loss


class Following(_Counted):
    """Steps through `backward(loss)`, without a second evaluation."""

    def step(self, closure: Closure) -> float:
        """Take a step on one evaluation."""
        self._optimizer.zero_grad()
        loss = closure()
        self._optimizer.backward(loss)
        self._optimizer.step()
        self._count(1)
        return float(loss.detach())


class Ablated(Minimizing):
    """Steps through `minimize` without some parts."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        """Take the parts to leave out from the settings."""
        super().__init__(model, settings)
        self._left_out = settings["without"].split("+")

    def step(self, closure: Closure) -> float:
        """Take a step without them."""
        with without(self._left_out):
            return super().step(closure)


class Familiar:
    """The loop that everybody writes."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take an optimizer that has the model's parameters."""
        self.cost = 0.0
        self._model = model
        self._optimizer = optimizer

    def step(self, closure: Closure) -> float:
        """Take a step: one pass forward, one backward."""
        self._optimizer.zero_grad()
        loss = closure()
        torch.autograd.backward(loss)
        self._move(loss)
        self.cost += step_cost(1, 0)
        return float(loss.detach())

    def _move(self, loss: Tensor) -> None:
        self._optimizer.step()

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        """Return the model as it is."""
        return self._model


class Averaged(Familiar):
    """DoG with the averages of its iterates, which are what is evaluated."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        """Take both as their package makes them."""
        dog = importlib.import_module("dog")
        # Both first distances are its authors' suggestion.
        first = 1e-4 if _has_batch_norm(model) else 1e-6
        super().__init__(model, dog.DoG(trained(model), reps_rel=first, lr=float(settings["lr"])))
        self._averager: Any = dog.PolynomialDecayAverager(model)

    def step(self, closure: Closure) -> float:
        """Take a step, then add it to the average."""
        try:
            loss = super().step(closure)
        except AssertionError:  # how it says that gradients are not finite
            raise Diverged from None
        self._averager.step()
        return loss

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        """Return the average."""
        averaged: nn.Module = self._averager.averaged_model
        return averaged


class TwoModes(Familiar):
    """An optimizer with a mode for training and one for evaluation."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        """Begin to train."""
        super().__init__(model, optimizer)
        self._modes = optimizer
        self._modes.train()

    def finish(self, passes: Iterable[Closure]) -> nn.Module:
        """Return the model in the mode for evaluation."""
        self._modes.eval()
        if _has_batch_norm(self._model):  # its statistics are of other parameters
            with torch.no_grad():
                for one in islice(passes, _REFRESHING_PASSES):
                    one()
        return self._model


class Momo(Familiar):
    """An optimizer that is told the loss."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        """Take an optimizer whose step has an argument for it."""
        super().__init__(model, optimizer)
        self._told = optimizer

    def _move(self, loss: Tensor) -> None:
        self._told.step(loss=loss.detach())


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
