"""vSGD as a PyTorch optimizer."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor

from pesky import rule
from pesky.errors import InputError, check_count, check_number
from pesky.torch import paper
from pesky.torch.distributed import average_curvature, process_group
from pesky.torch.explaining import Explanation, explain, mean_rates
from pesky.torch.loss_scale import unscaling
from pesky.torch.measured import MeasuringOptimizer
from pesky.torch.measuring import Choice, Measuring
from pesky.torch.parts import Part
from pesky.torch.pending import Pending
from pesky.torch.settings import Granularity, check_choice, check_group, check_parameters
from pesky.torch.stepping import part_of, polyak_curvature, unusable

__all__ = ["VSGD"]

_NO_CURVATURE = (
    "step() found gradients but no curvature. Three ways to get it: "
    "optimizer.minimize(lambda: loss_fn(model(x), y)) for a whole step; "
    "optimizer.backward(loss) in place of loss.backward(); or, once, "
    "optimizer.watch(loss_module_or_model) where the loop is not yours"
)


class VSGD(MeasuringOptimizer):
    """Learning rates that set themselves ("No More Pesky Learning Rates", Schaul et al., 2013).

    Nothing needs setting. `granularity` says what shares a rate: nothing ("element"), a parameter
    tensor ("block") or a parameter group ("global"). `lr` multiplies all rates, for schedulers and
    loops that expect one. `weight_decay` is L2: in the gradient and in the curvature. `curvature` is
    measured in one of `curvature_every` steps, by bbprop or another source; `curvature_floor` is its
    lower bound. The first `init_batches` steps collect averages without moving; then v and h are
    overestimated by `slow_start` (where None, by a tenth of the number of parameters).
    `process_group` is where data-parallel gradients are averaged: None for all processes there
    are, False for none.

    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(2, 1)
    >>> x, y = torch.randn(100, 2), torch.ones(100, 1)
    >>> optimizer = VSGD(model.parameters())
    >>> for _ in range(100):
    ...     loss = optimizer.minimize(lambda: torch.nn.functional.mse_loss(model(x), y))
    >>> loss.item() < 1e-6
    True
    """

    _step_supports_amp_scaling = True  # GradScaler then sets `grad_scale` and `found_inf` before step()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        *,
        granularity: Granularity = "element",
        dialect: Literal["paper"] = "paper",
        weight_decay: float = 0.0,
        curvature_floor: float | None = None,
        curvature: Choice = "bbprop",
        curvature_every: int = 1,
        init_batches: int = 10,
        slow_start: float | None = None,
        process_group: Any = None,
    ) -> None:
        """Check the settings; nothing is measured yet."""
        check_choice("dialect", dialect, ("paper",))
        self.dialect = dialect
        self.curvature_every = check_count("curvature_every", curvature_every)
        self.init_batches = check_count("init_batches", init_batches)
        if slow_start is not None:
            slow_start = check_number("slow_start", slow_start, least=1)
        self.slow_start = slow_start
        self.process_group = process_group
        self._measuring = Measuring(curvature)
        self._prepare()
        self.counters: dict[str, Any] = {
            "steps": 0,  # those skipped apart
            "moves": 0,  # steps in which nothing had to be collected
            "collecting": True,  # whether something has initial batches to see
            "skipped": {},  # by reason
            "sources": {},  # of curvature, by name
        }
        defaults = {
            "lr": lr,
            "granularity": granularity,
            "weight_decay": weight_decay,
            "curvature_floor": curvature_floor,
        }
        super().__init__(params, defaults)

    def _prepare(self) -> None:
        """Set up what lives between two steps only."""
        self._pending = Pending()
        self._said_unreached = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the gradients and curvatures that backward passes left."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self._step()
        finally:
            self._pending.clear()
        return loss

    def explain(self) -> Explanation:
        """Say what the optimizer does and why: prints as a table, `.as_dict()` for machines."""
        return explain(self)

    def rates(self) -> dict[str, float]:
        """Return every parameter's mean rate by its name, for logging."""
        return mean_rates(self)

    def _is_due(self) -> bool:
        """Whether this step needs curvature."""
        return bool(self.counters["collecting"] or self.counters["moves"] % self.curvature_every == 0)

    # --- The step ----------------------------------------------------------------------------------

    def _step(self) -> None:
        parts = self._parts()
        if not parts:
            return
        pending, due = self._pending, self._is_due()
        if due and pending.passes == 0:
            raise InputError(_NO_CURVATURE)
        factors = unscaling(self, pending)
        if factors is None:
            self._skip("the loss scaler found inf or nan")
            return
        for part in parts:
            part.gradient_factor, part.curvature_factor = factors
        loss = pending.loss * factors[1]
        among = process_group(self.process_group)
        if among is not None and due:
            loss = average_curvature(parts, loss, among)
        if pending.unmeasured and loss > 0:
            polyak_curvature(parts, paper.batches_of(parts, self.init_batches), loss)
        if due and not pending.unmeasured:
            self._say_if_unreached(parts)
        self._advance(parts)

    def _parts(self) -> list[Part]:
        return [
            part_of(one, self._pending.values.get(one), group, self.state[one])
            for group in self.param_groups
            for one in group["params"]
            if one.grad is not None and one.numel() > 0
        ]

    def _advance(self, parts: list[Part]) -> None:
        slow_start = self.slow_start_factor()
        # What has initial batches to see waits for one with curvature.
        new = [part for part in parts if paper.is_collecting(part.state, self.init_batches)]
        ready = [part for part in parts if part.curvature is not None or part not in new]
        batches = paper.batches_of(ready, self.init_batches)
        reason = unusable(batches, self.init_batches, slow_start)
        if reason is not None:
            self._skip(reason)
            return
        paper.step(batches, self.init_batches, slow_start)
        self.counters["steps"] += 1
        self.counters["moves"] += not new
        still = [part for part in new if paper.is_collecting(part.state, self.init_batches)]
        self.counters["collecting"] = bool(still)

    def slow_start_factor(self) -> float:
        """Return C."""
        if self.slow_start is not None:
            return self.slow_start
        return rule.slow_start_factor(
            sum(one.numel() for group in self.param_groups for one in group["params"])
        )

    def _skip(self, reason: str) -> None:
        skipped = self.counters["skipped"]
        skipped[reason] = skipped.get(reason, 0) + 1

    def _say_if_unreached(self, parts: list[Part]) -> None:
        unreached = sum(part.curvature is None for part in parts)
        if unreached and not self._said_unreached:
            self._said_unreached = True
            warnings.warn(
                f"{unreached} of {len(parts)} parameters with a gradient have no curvature: "
                "no loss that was watched or given to optimizer.backward() depends on them",
                stacklevel=5,
            )

    # --- What torch expects of an optimizer --------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, which start with initial batches of their own."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
            check_parameters(group["params"])
        except InputError:
            self.param_groups.pop()
            raise
        group.setdefault("shared", paper.begin_shared())
        self.counters["collecting"] = True

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs to go on bit for bit."""
        state = super().state_dict()
        for group in state["param_groups"]:
            group["shared"] = dict(group["shared"])  # ours changes with every step
        return {**state, "counters": deepcopy(self.counters)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from where `state_dict` was called."""
        super().load_state_dict(state_dict)
        # torch casts averages to the type of the parameter, and shares the tensors of what it loads.
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        ours = [one for group in self.param_groups for one in group["params"]]
        for number, parameter in zip(numbers, ours, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.detach().to(parameter.device, copy=True)
        if "counters" in state_dict:
            self.counters = deepcopy(state_dict["counters"])
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles consist of; `watch` is not copied."""
        names = ("dialect", "curvature_every", "init_batches", "slow_start", "process_group")
        own = {name: getattr(self, name) for name in (*names, "counters", "_measuring")}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set up what copies and pickles leave out."""
        super().__setstate__(state)
        self._prepare()
