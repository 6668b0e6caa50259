"""vSGD as a PyTorch optimizer: what a user calls. `pesky.torch` has the map of a step."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pesky.errors import InputError, check_count, check_number
from pesky.torch import words
from pesky.torch.curvature.choice import Choice, CurvatureSource
from pesky.torch.explain import Explanation, explain, mean_rates
from pesky.torch.loss.again import (
    Evaluation,
    RandomState,
    check_closure,
    first_pass,
    given_again,
    put_back,
)
from pesky.torch.loss.backward import Wanted, check_loss, scale_of
from pesky.torch.loss.watch import Watched, Watcher, check_module
from pesky.torch.settings import Granularity, check_choice, check_flag
from pesky.torch.stepping import SteppingOptimizer

__all__ = ["VSGD"]

Dialect: TypeAlias = Literal["paper", "robust"]


class VSGD(SteppingOptimizer):
    """Learning rates that set themselves ("No More Pesky Learning Rates", Schaul et al., 2013).

    At every step the rate that most decreases the expected loss is estimated for each entry of each
    parameter, from running averages of its gradient (g), squared gradient (v) and curvature (h):
    `rate = g^2 / (h v)`. The robust dialect measures the level of each tensor's curvature now and then,
    and how far all entries can go together, by evaluating losses again; it shows the average of the
    parameters where that is better. See docs/theory.md. Nothing needs setting. Best is `minimize`;
    `backward(loss, again=closure)` leaves out the average, and without either gradients set the length.

    Args:
        params: parameters, named parameters or groups of them, as every torch optimizer takes them.
        lr: a factor on all rates, for schedulers and loops that expect one.
        granularity: what shares a rate: nothing ("element"), a tensor ("block") or a group ("global").
        dialect: "robust", or "paper" for the method exactly as it was published.
        weight_decay: L2, in the gradient and in the curvature.
        decoupled_weight_decay: whether weight_decay is AdamW's instead: every step also takes
            weight_decay times its size (root mean square over the group) of each parameter off it.
        curvature_floor: a lower bound on the curvature, the paper's epsilon; None for none.
        curvature: where it comes from: "bbprop", "finite-difference", "hutchinson", or a function
            of the loss and the list of parameters that returns a tensor, or None, for each. None is
            "bbprop" in the paper's dialect, else what a loss allows of the other two.
        curvature_every: it is measured in one of so many steps, at least. None: ever more seldom; in
            every step in the paper's dialect, and where gradients are sparse.
        init_batches: steps that collect averages before anything moves.
        slow_start: the factor by which the paper's dialect then overestimates v and h; None: a tenth of
            the number of parameters.
        even_start: whether, in the paper's dialect, all entries of a tensor begin with its largest v
            and h, so that those which the initial batches left silent have a slow start, too.
        process_group: where data-parallel gradients are averaged; None: all processes, False: none.

    Example:

    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(2, 1)
    >>> x, y = torch.randn(100, 2), torch.ones(100, 1)
    >>> optimizer = VSGD(model.parameters())
    >>> for _ in range(100):
    ...     loss = optimizer.minimize(lambda: torch.nn.functional.mse_loss(model(x), y))
    >>> loss.item() < 1e-6
    True
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        *,
        granularity: Granularity = "element",
        dialect: Dialect = "robust",
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        curvature_floor: float | None = None,
        curvature: Choice | None = None,
        curvature_every: int | None = None,
        init_batches: int = 10,
        slow_start: float | None = None,
        even_start: bool = True,
        process_group: Any = None,
    ) -> None:
        """Check the settings; nothing is measured yet."""
        check_choice("dialect", dialect, get_args(Dialect))
        self.dialect = dialect
        if curvature_every is not None:
            curvature_every = check_count("curvature_every", curvature_every)
        self.curvature_every = curvature_every
        self.init_batches = check_count("init_batches", init_batches)
        if slow_start is not None:
            slow_start = check_number("slow_start", slow_start, least=1)
        self.slow_start = slow_start
        check_flag("even_start", even_start)
        self.even_start = even_start
        self.process_group = process_group
        self._source = CurvatureSource(curvature)
        self._begin()
        defaults = {
            "lr": lr,
            "granularity": granularity,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "curvature_floor": curvature_floor,
        }
        super().__init__(params, defaults)
        self._prepare()
        self._say("lr", words.low_lr(min(float(group["lr"]) for group in self.param_groups)))

    # --- Ways to call it -------------------------------------------------------------------------------

    def minimize(self, closure: Callable[[], Tensor]) -> Tensor:
        """Do a whole step on the loss that `closure` computes; return that loss.

        The closure computes: it needs no zero_grad and no backward. It may be called several times;
        random numbers and buffers such as batch norm's are the same as if it was called once. In the
        robust dialect the parameters are afterwards the better of iterate and average.
        """
        check_closure(closure)
        self._decide_form(can_repeat=True)
        is_measuring = self.counters["form"] == "measuring"
        self._inside = False  # Ctrl-C may have kept the last call from saying so
        self.zero_grad()
        if is_measuring:
            self._places.enter()
        records = torch.is_grad_enabled()
        try:
            self._inside = True
            loss, state, buffers = first_pass(closure)
            try:
                self._minimize(closure, loss, state, buffers)
            except BaseException:
                put_back(buffers)
                raise
            if is_measuring:
                self._places.show()
        except BaseException:  # KeyboardInterrupt, too: as if nothing had been called
            if is_measuring:
                self._places.stay(self.collective.visible)
            raise
        finally:
            self._inside = False
            self._pending.clear()
            torch.set_grad_enabled(records)  # an interrupt may have come between two modes
        return loss.detach()

    def _minimize(
        self,
        closure: Callable[[], Tensor],
        loss: Tensor,
        state: RandomState,
        buffers: dict[Tensor, Tensor],
    ) -> None:
        """Do what is left of a step after the first pass of its closure."""
        check_loss(loss)
        if any(one.grad is not None for one in self._parameters()):
            self._forget_gradients()
            raise InputError(words.RUNS_BACKWARD)
        evaluation = Evaluation(closure, loss, state, buffers, self._manner, self._pending.reading)
        again = closure if self.counters["repeats"] else None
        self._count_source(self._backward.run(loss, self._wanted(), again, state))
        self._pending.first_passes = [evaluation]
        if self.counters["form"] == "measuring":
            if self._is_loss_due() and not self.collective.has_statistics:
                self.collective.has_statistics = evaluation.has_statistics
            self._pending.evaluations = [evaluation]
        self.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, and curvatures with them; a closure that `minimize` calls need not."""
        if not self._inside:
            self._forget_gradients(set_to_none)

    def _forget_gradients(self, set_to_none: bool = True) -> None:
        if set_to_none:  # without what torch records for its profiler
            for group in self.param_groups:
                for one in group["params"]:
                    one.grad = None
        else:
            super().zero_grad(set_to_none)
        self._pending.clear()

    def backward(
        self, loss: Tensor, *, again: Callable[[], Tensor] | None = None, scaler: Any = None
    ) -> None:
        """Measure the curvature of the loss, then do `loss.backward()`.

        With a `scaler` the gradient is that of `scaler.scale(loss)`; give the loss itself. `again`
        computes the loss once more: for sources of curvature that need it, and for the robust dialect.
        """
        check_loss(loss)
        if again is not None:
            check_closure(again, "again")
        self._decide_form(can_repeat=again is not None)
        is_measuring = self.counters["form"] == "measuring"
        if is_measuring and again is None:
            raise InputError(words.NO_AGAIN)
        repeated = again if self.counters["repeats"] else None
        source = self._backward.run(loss, self._wanted(), repeated, scale=scale_of(scaler))
        self._count_source(source)
        if is_measuring and again is not None:
            manner, reading = self._manner, self._pending.reading
            found = given_again(again, loss, self._is_loss_due(), manner, reading)
            self._pending.evaluations.append(found)

    def watch(self, module: nn.Module, *, scaler: Any = None) -> RemovableHandle:
        """Measure curvature inside every `loss.backward()`, for a loss that this module computes.

        The module is a loss, or a model whose output is or holds the loss (`.loss`, `["loss"]`, first).
        Only what the module computes is seen: penalties added to its loss afterwards are not.
        Give the GradScaler if `scaler.unscale_` is called. Returns a handle with `remove()`.
        """
        check_module(module)
        watcher = Watcher(self, scaler)
        handle = module.register_forward_hook(watcher)
        self._watched.append(Watched(type(module).__name__, watcher, handle))
        return handle

    def _watched_backward(self, loss: Tensor, upstream: Tensor, scaler: Any) -> None:
        """Measure a watched loss, unless it is one of our own passes that has come to it."""
        if not self._backward.is_running:
            self._decide_form(can_repeat=False)
            self._count_source(self._backward.run_inside(loss, self._wanted(), upstream, scaler))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the gradients and curvatures that backward passes left."""
        loss = None
        if closure is not None:
            check_closure(closure)
            with torch.enable_grad():  # it runs backward itself, as torch's optimizers expect
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

    # --- What is measured, and when --------------------------------------------------------------------

    def _decide_form(self, can_repeat: bool) -> None:
        """Let the first backward pass decide whether losses are evaluated again."""
        if self.counters["form"] is None:
            self.counters["form"] = "measuring" if can_repeat else "following"

    def _wanted(self) -> Wanted:
        """Return what the next step wants of a backward pass."""
        return Wanted(
            is_due=self._is_due(),
            parameters=self._parameters(),
            seed=self.counters["steps"],
            known_curved="bbprop" in self.counters["sources"],
            for_levels=self.dialect == "robust" and not self._by_rows,
            copies=self._places.iterates(),
        )

    def _count_source(self, source: str | None) -> None:
        if source is not None:
            sources = self.counters["sources"]
            sources[source] = sources.get(source, 0) + 1
