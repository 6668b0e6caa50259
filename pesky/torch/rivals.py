"""The paper's rivals that torch does not have, with the rules of `pesky.online`.

All three take `weight_decay` as L2. Their constants must be tuned: the paper searched grids.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from pesky import rule
from pesky.errors import InputError, check_number
from pesky.torch.closures import loss_of
from pesky.torch.settings import check_choice, check_parameters

__all__ = ["SMD", "Almeida", "Amari"]

_START_RATE = 1e-3  # of Almeida's multiplicative reading
_LARGEST_RATE = 1e15  # rates multiply; beyond this a run is lost, but stays finite
_LARGEST_EXPONENT = 80.0  # of the factor between two of SMD's rates


class _Rival(Optimizer):
    """What the three share: groups of real parameters, and a closure in `step`."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters."""
        super().add_param_group(param_group)
        check_parameters(self.param_groups[-1]["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; the closure, if given, computes the loss and runs backward."""
        loss = loss_of(closure)
        for group in self.param_groups:
            self._step_group(group)
        return loss

    @abstractmethod
    def _step_group(self, group: dict[str, Any]) -> None:
        """Move the parameters of a group."""


class _OneByOne(_Rival):
    """A rival whose parameters do not know of each other."""

    def _step_group(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient = parameter.grad + group["weight_decay"] * parameter
                self._move(parameter, gradient, group, self.state[parameter])

    @abstractmethod
    def _move(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        """Move one parameter."""


class Amari(_OneByOne):
    """A rate lr / v for each parameter, v a running average of its squared gradient, from 1 on.

    Amari's natural gradient with a diagonal Fisher matrix; `tau` is the memory of v.
    """

    def __init__(self, params: Any, lr: float, *, tau: float, weight_decay: float = 0.0) -> None:
        """Check the settings."""
        super().__init__(params, _checked(lr=lr, tau=tau, weight_decay=weight_decay))

    def _move(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        v = _mean_square(state, gradient, group["tau"])
        parameter -= _rates(group["lr"], v) * gradient


class Almeida(_OneByOne):
    """A rate for each parameter from its last gradient.

    `reading` says which of three published forms is meant, g(t) being a gradient, v a running average of
    its square, from 1 on: "printed" is max(0, lr theta(t) g(t-1) / v), as the paper has it, no descent
    rule but the one that reproduces its numbers; "product" has g(t) in the place of theta(t);
    "multiplicative" is eta(t-1) (1 + lr g(t) g(t-1) / v), from 0.001 on.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        tau: float,
        reading: Literal["printed", "product", "multiplicative"] = "printed",
        weight_decay: float = 0.0,
    ) -> None:
        """Check the settings."""
        check_choice("reading", reading, ("printed", "product", "multiplicative"))
        settings = _checked(lr=lr, tau=tau, weight_decay=weight_decay)
        super().__init__(params, {**settings, "reading": reading})

    def _move(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> None:
        reading = group["reading"]
        v = _mean_square(state, gradient, group["tau"])
        if "rate" not in state:
            start = _START_RATE if reading == "multiplicative" else 0.0
            state["last_gradient"] = torch.zeros_like(gradient)
            state["rate"] = torch.full_like(gradient, start)
        agreement = _rates(group["lr"], v) * state["last_gradient"]
        agreement = agreement * (parameter if reading == "printed" else gradient)
        agreement = torch.where(abs(agreement) < _LARGEST_RATE, agreement, _LARGEST_RATE)
        rate = state["rate"]
        wanted = rate + rate * agreement if reading == "multiplicative" else agreement
        state["rate"] = wanted.clamp(0, _LARGEST_RATE)
        state["last_gradient"] = gradient.clone()
        parameter -= state["rate"] * gradient


class SMD(_Rival):
    """Stochastic meta-descent (Schraudolph, 1999): one rate, multiplied by exp(-mu gradient . trace).

    A group's rate, `lr`, is what is adapted. The trace follows how the parameters depend on the rate's
    past and forgets with time constant tau. It needs an exact product with the Hessian: call
    `optimizer.backward(loss)` in place of `loss.backward()`, or `optimizer.minimize(closure)` for a
    whole step; a closure given to `step` calls `optimizer.backward` too.
    """

    def __init__(
        self, params: Any, lr: float, *, mu: float, tau: float, weight_decay: float = 0.0
    ) -> None:
        """Check the settings."""
        settings = _checked(lr=lr, tau=tau, weight_decay=weight_decay)
        super().__init__(params, {**settings, "mu": check_number("mu", mu, least=0)})

    def minimize(self, closure: Callable[[], Tensor]) -> Tensor:
        """Do a whole step on the loss that `closure` computes; return that loss."""
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
        self.backward(loss)
        self.step()
        return loss.detach()

    def backward(self, loss: Tensor) -> None:
        """Add up gradients and their derivatives along the traces, over one or several losses."""
        parameters = [one for one in self._parameters() if one.requires_grad]
        slopes = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        reached = [
            (one, slope) for one, slope in zip(parameters, slopes, strict=True) if slope is not None
        ]
        curved = [(one, slope) for one, slope in reached if slope.requires_grad]
        products: Iterable[Tensor | None] = ()
        if curved:
            products = torch.autograd.grad(
                [slope for _, slope in curved],
                [one for one, _ in curved],
                grad_outputs=[self._trace(one) for one, _ in curved],
                allow_unused=True,
            )
        for one, slope in reached:
            one.grad = slope.detach() if one.grad is None else one.grad + slope.detach()
        for (one, _), product in zip(curved, products, strict=True):
            if product is not None:
                state = self.state[one]
                state["product"] = state.get("product", 0) + product

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, and products with them."""
        super().zero_grad(set_to_none)
        for parameter in self._parameters():
            self.state[parameter].pop("product", None)

    def _step_group(self, group: dict[str, Any]) -> None:
        rate, keep, decay = group["lr"], 1 - 1 / group["tau"], group["weight_decay"]
        agreement = 0.0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state, trace = self.state[parameter], self._trace(parameter)
            if "product" not in state and bool(trace.any()):
                raise InputError(
                    "SMD found a gradient without its product with the Hessian; use "
                    "optimizer.backward(loss) in place of loss.backward()"
                )
            gradient = parameter.grad + decay * parameter
            product = state.pop("product", 0) + decay * trace
            agreement += float((gradient * trace).sum())
            parameter -= rate * gradient
            state["trace"] = keep * trace - rate * (gradient + keep * product)
        exponent = min(max(-group["mu"] * agreement, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)
        group["lr"] = min(max(rate * math.exp(exponent), 1e-15), 1e15)

    def _parameters(self) -> list[Tensor]:
        return [one for group in self.param_groups for one in group["params"]]

    def _trace(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "trace" not in state:
            state["trace"] = torch.zeros_like(parameter, requires_grad=False)
        trace: Tensor = state["trace"]
        return trace


def _checked(*, lr: float, tau: float, weight_decay: float) -> dict[str, Any]:
    return {
        "lr": check_number("lr", lr, above=0),
        "tau": check_number("tau", tau, least=1),
        "weight_decay": check_number("weight_decay", weight_decay, least=0),
    }


def _mean_square(state: dict[str, Any], gradient: Tensor, tau: float) -> Tensor:
    before = state.get("mean_square", torch.ones_like(gradient))
    v: Tensor = rule.average(before, gradient * gradient, tau)
    state["mean_square"] = v
    return v


def _rates(lr: float, mean_square: Tensor) -> Tensor:
    rates: Tensor = rule.learning_rate(torch.full_like(mean_square, lr), mean_square)
    return rates
