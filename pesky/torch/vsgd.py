"""vSGD as a PyTorch optimizer."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from pesky import collective as shared
from pesky import rule
from pesky.errors import InputError, check_count, check_number
from pesky.torch import following, paper, robust, words
from pesky.torch.again import RandomState, put_back
from pesky.torch.checkpoints import check_keys, check_shapes, is_foreign
from pesky.torch.closures import loss_of
from pesky.torch.collective import Collective
from pesky.torch.curvature import Mode
from pesky.torch.distributed import average_curvature, process_group
from pesky.torch.evaluating import Evaluation, Manner, first_pass, given_again
from pesky.torch.explaining import Explanation, explain, mean_rates
from pesky.torch.loss_scale import unscaling
from pesky.torch.measured import MeasuringOptimizer, check_closure, check_loss
from pesky.torch.measuring import Choice, Measuring
from pesky.torch.parts import Part, Start, kept_like
from pesky.torch.pending import Pending
from pesky.torch.places import Places
from pesky.torch.progress import Progress, say
from pesky.torch.settings import Granularity, check_choice, check_group, check_parameters, check_rates
from pesky.torch.skipping import NO_GRADIENT, NO_REPEAT, NOT_FINITE, SCALER, Outcome
from pesky.torch.stepping import part_of, polyak_curvature, unusable

__all__ = ["VSGD"]

Dialect: TypeAlias = Literal["paper", "robust"]

_SELDOM = 4  # steps to a measurement of curvature in the robust dialect; see docs/theory.md


class VSGD(MeasuringOptimizer):
    """Learning rates that set themselves ("No More Pesky Learning Rates", Schaul et al., 2013).

    Nothing needs setting. `granularity` says what shares a rate: nothing ("element"), a parameter
    tensor ("block") or a parameter group ("global"). `lr` multiplies all rates, for schedulers and
    loops that expect one. `weight_decay` is L2: in the gradient and in the curvature. `curvature` is
    measured in one of `curvature_every` steps (None: of 4, in the paper's dialect in all), by bbprop or
    another source; `curvature_floor` is its lower bound. The first `init_batches` steps collect
    averages without moving. Then, in the paper's dialect, v and h are overestimated by `slow_start`
    (where None, by a tenth of the number of parameters); with `even_start` all entries of a tensor
    begin with its largest v and h, so that those which the initial batches left silent have a slow
    start, too.
    `dialect` "robust" sets the length of the step, too, by evaluating losses again at its end (twice as
    often as it measures curvature), and shows the average of the parameters where that is better; see
    docs/theory.md. Best is `minimize`; `backward(loss, again=closure)` leaves out the average, and
    without either gradients set the length.
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
        dialect: Dialect = "robust",
        weight_decay: float = 0.0,
        curvature_floor: float | None = None,
        curvature: Choice = "bbprop",
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
        if not isinstance(even_start, bool):
            raise InputError(f"even_start must be True or False; got {even_start!r}")
        self.even_start = even_start
        self.process_group = process_group
        self._measuring = Measuring(curvature)
        self.counters: dict[str, Any] = {
            "steps": 0,  # those skipped apart
            "moves": 0,  # steps in which nothing had to be collected
            "collecting": True,  # whether something has initial batches to see
            "skipped": {},  # by reason
            "sources": {},  # of curvature, by name
            "form": "paper" if dialect == "paper" else None,  # or measuring, following; None: open
            "repeats": True,  # whether a closure that is called again computes the same loss
        }
        self.collective = Collective()
        self.progress = Progress()
        defaults = {
            "lr": lr,
            "granularity": granularity,
            "weight_decay": weight_decay,
            "curvature_floor": curvature_floor,
        }
        super().__init__(params, defaults)
        self._prepare()
        self._say("lr", words.low_lr(min(float(group["lr"]) for group in self.param_groups)))

    def _prepare(self) -> None:
        """Set up what lives between two steps only."""
        self._pending = Pending()
        self._places = Places(self.state, self.collective)
        # Whether there are sparse gradients.
        self._by_rows = any(isinstance(one.get("initial"), Tensor) for one in self.state.values())
        self._inside = False  # of minimize, which swaps parameters itself
        self._manner = Manner()
        self._watched = []
        self._said: set[str] = set()

    def minimize(self, closure: Callable[[], Tensor]) -> Tensor:
        """Do a whole step on the loss that `closure` computes; return that loss.

        The closure computes: it needs no zero_grad and no backward. It may be called several times;
        random numbers and buffers such as batch norm's are the same as if it was called once. In the
        robust dialect the parameters are afterwards the better of iterate and average.
        """
        check_closure(closure)
        is_measuring = self._is_robust(can_repeat=True)
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
                self._places.stay("average" if self.collective.shows_average else "iterate")
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
        evaluation = Evaluation(closure, loss, state, buffers, self._manner)
        self._backward(loss, closure if self.counters["repeats"] else None, state)
        self._pending.first_passes = [evaluation]
        if self.counters["form"] == "measuring":
            self.collective.has_statistics |= evaluation.has_statistics
            self._pending.evaluations = [evaluation]
        self.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, and curvatures with them; a closure that `minimize` calls need not."""
        if not self._inside:
            self._forget_gradients(set_to_none)

    def _forget_gradients(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)

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
        robust_now = self._is_robust(can_repeat=again is not None)
        if robust_now and again is None:
            raise InputError(words.NO_AGAIN)
        super().backward(loss, again=again if self.counters["repeats"] else None, scaler=scaler)
        if robust_now and again is not None:
            is_due = self._is_loss_due()
            self._pending.evaluations.append(given_again(again, loss, is_due, self._manner))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the gradients and curvatures that backward passes left."""
        if closure is not None:
            check_closure(closure)
        loss = loss_of(closure)
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
        return bool(self.counters["moves"] % self._curvature_every() == 0)

    def _is_loss_due(self) -> bool:
        """Whether this step evaluates its loss again."""
        return bool(self.counters["moves"] % self._loss_every() == 0)

    def _curvature_every(self) -> int:
        if self.counters["collecting"]:
            return 1
        if self.dialect == "paper":
            return self.curvature_every or 1
        # Rows that are seldom touched would wait long for a curvature that they have a part in.
        most = self.curvature_every or (1 if self._by_rows else _SELDOM)
        return shared.interval(self.counters["moves"], most)

    def _loss_every(self) -> int:
        every = (self._curvature_every() + 1) // 2
        # Statistics of the average come from these evaluations: in between, the iterate's have to do.
        return min(every, 2) if self.collective.has_statistics else every

    def _mode(self) -> Mode:
        # A scale that is followed, not measured, would take long to make up for a larger curvature.
        return "saturation" if self.counters["form"] == "measuring" else "gauss-newton"

    def _is_robust(self, can_repeat: bool) -> bool:
        """Whether losses are evaluated again, which the first backward pass decides."""
        if self.counters["form"] is None:
            self.counters["form"] = "measuring" if can_repeat else "following"
        return bool(self.counters["form"] == "measuring")

    def _watched_backward(self, loss: Tensor, upstream: Tensor, scaler: Any) -> None:
        if not self._measuring_now:
            self._is_robust(can_repeat=False)
        super()._watched_backward(loss, upstream, scaler)

    # --- The step ----------------------------------------------------------------------------------

    def _step(self) -> None:
        for group in self.param_groups:
            check_rates(group)
        parts = self._parts()
        if not parts:
            self._conclude(Outcome(skipped=NO_GRADIENT))
            return
        if self._pending.shown_loss is not None:
            self.progress.note_loss(self._pending.shown_loss)
        among = process_group(self.process_group)
        losses = self._losses(among) if self.counters["form"] == "measuring" else None
        try:
            self._judge(parts, losses, among)
        finally:
            if losses is not None and not self._inside:
                self._places.stay()

    def _judge(self, parts: list[Part], losses: robust.Losses | None, among: Any) -> None:
        """Advance, if losses and gradients are such that a step can be taken."""
        pending = self._pending
        if losses is not None:
            outcome = robust.trouble(losses, self.collective, self._places)
            if outcome.skipped is not None:
                self._conclude(outcome)
                return
        measured = pending.passes > 0
        if self._is_due() and not measured and not pending.spared:
            idle = words.idle(self._idle_watched())
            raise InputError(f"{words.NO_CURVATURE}; {idle}" if idle else words.NO_CURVATURE)
        factors = unscaling(self, pending)
        if factors is None:
            self._conclude(Outcome(skipped=SCALER))
            return
        if among is None and not pending.is_finite:  # others wait for this process; gradients will tell
            self._conclude(Outcome(skipped=NOT_FINITE, undo=self.progress.skipped > 0))
            return
        weight = float(self._curvature_every()) if self.dialect == "robust" else 1.0
        for part in parts:
            part.gradient_factor, part.curvature_factor = factors
            part.curvature_weight = weight
        loss = pending.loss * factors[1]
        if among is not None and (measured or self._is_due()):
            loss = average_curvature(parts, loss, among)
        if pending.unmeasured and loss > 0:
            polyak_curvature(parts, paper.batches_of(parts, self.init_batches), loss)
        if measured and not pending.unmeasured:
            self._say_if_unreached(parts)
        self._advance(parts, losses)

    def _losses(self, among: Any) -> robust.Losses:
        """Go to the iterate; return what losses are there."""
        if not self._pending.evaluations:
            raise InputError(words.NO_AGAIN)
        if not self._inside:
            self._places.enter(visible_is_iterate=True)
        return robust.Losses(self._pending.evaluations, self.param_groups, among)

    def _undo(self) -> None:
        """Go back to before the last step."""
        if self.counters["form"] == "measuring":
            self._places.undo()
            self._places.stay()
        elif self.counters["form"] == "following":
            following.undo(self.state.items(), self.collective)

    def _conclude(self, outcome: Outcome) -> None:
        """Count the step, or say why it was not taken."""
        if outcome.undo:
            self._undo()
        if outcome.held:
            self._say("held", words.HELD)
        reason = outcome.skipped
        if reason is None:
            self.counters["steps"] += 1
            self._say("stuck", self.progress.note_step(self.scale))
            if self.counters["steps"] >= words.IDLE:
                self._say("idle", words.idle(self._idle_watched()))
            return
        for one in self._pending.first_passes:
            one.forget_buffers()
        self.counters["skipped"][reason] = self.counters["skipped"].get(reason, 0) + 1
        message = self.progress.note_skip(reason)
        if reason == NO_REPEAT:
            self._stop_repeating()
        else:
            self._say(reason, message)

    @property
    def scale(self) -> float | None:
        """The scale of the steps; None where there is none, or where lr makes all of them shorter."""
        is_full = any(float(group["lr"]) >= 1 for group in self.param_groups)
        return self.collective.scale if is_full and self.counters["form"] != "paper" else None

    def _stop_repeating(self) -> None:
        """Go on without second evaluations, as their losses have nothing to do with the first one."""
        self.counters["repeats"] = False
        if self._measuring.choice == "finite-difference":
            raise InputError(f"curvature='finite-difference' needs a {words.REPEATS_NOT}")
        self.counters["form"] = "following"
        self._places.stay("average" if self.collective.shows_average else "iterate")
        for one in self.state:
            self._places.forget(one)
        self.collective.numbers = list(shared.START)
        self._say(
            "repeat", f"losses are evaluated again, which needs a {words.REPEATS_NOT}; going on without"
        )

    def _say(self, name: str, message: str | None) -> None:
        """Warn once, if there is something to say."""
        if message and name not in self._said:
            self._said.add(name)
            say(message)

    def _parts(self) -> list[Part]:
        parts = [
            part_of(one, self._pending.values.get(one), group, self.state[one])
            for group in self.param_groups
            for one in group["params"]
            if one.grad is not None and one.requires_grad and one.numel() > 0
        ]
        self._by_rows |= any(part.rows is not None for part in parts)
        return parts

    def _advance(self, parts: list[Part], losses: robust.Losses | None) -> None:
        start = Start(self.init_batches, self.slow_start_factor(), self.even_start)
        # What has initial batches to see waits for one with curvature.
        new = [part for part in parts if paper.is_collecting(part.state, self.init_batches)]
        ready = [part for part in parts if part.curvature is not None or part not in new]
        batches = paper.batches_of(ready, self.init_batches)
        reason = unusable(batches, start)
        if reason is not None:
            # One such batch is the data's fault; of two in a row the last step may be the reason.
            self._conclude(Outcome(skipped=reason, undo=self.progress.skipped > 0))
            return
        if self.counters["form"] == "paper":
            outcome = Outcome(held=paper.step(batches, start))
        elif losses is None:
            outcome = following.step(batches, start, self.collective)
        else:
            places, interval, due = self._places, self._loss_every(), self._is_loss_due()
            outcome = robust.step(batches, start, losses, self.collective, places, interval, due)
        self._conclude(outcome)
        self.counters["moves"] += not new and outcome.skipped is None
        still = [part for part in new if paper.is_collecting(part.state, self.init_batches)]
        self.counters["collecting"] = bool(still)

    def slow_start_factor(self) -> float:
        """Return C."""
        if self.slow_start is not None:
            return self.slow_start
        return rule.slow_start_factor(
            sum(one.numel() for group in self.param_groups for one in group["params"])
        )

    def _say_if_unreached(self, parts: list[Part]) -> None:
        unreached = sum(part.curvature is None for part in parts)
        if unreached:
            self._say(
                "unreached",
                f"{unreached} of {len(parts)} parameters with a gradient have no curvature: "
                "no loss that was watched or given to optimizer.backward() depends on them",
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
        return {
            **state,
            "counters": deepcopy(self.counters),
            "collective": self.collective.as_dict(),
            "progress": self.progress.as_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from where `state_dict` was called."""
        check_keys(state_dict)
        if is_foreign(state_dict):
            say(words.FOREIGN)
            return
        check_shapes(state_dict, [one for group in self.param_groups for one in group["params"]])
        super().load_state_dict(state_dict)
        # torch casts averages to the type of the parameter, be it half precision, and shares tensors.
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        ours = [one for group in self.param_groups for one in group["params"]]
        for number, parameter in zip(numbers, ours, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = kept_like(parameter, value)
        if "counters" in state_dict:
            self.counters = {"repeats": True, **deepcopy(state_dict["counters"])}
        if "collective" in state_dict:
            self.collective = Collective.from_dict(state_dict["collective"])
        self.progress = Progress.from_dict(state_dict.get("progress", {}))
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles consist of; `watch` is not copied."""
        settings = ("dialect", "curvature_every", "init_batches", "slow_start", "even_start")
        names = (*settings, "process_group", "counters", "collective", "progress", "_measuring")
        own = {name: getattr(self, name) for name in names}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set up what copies and pickles leave out."""
        super().__setstate__(state)
        self._prepare()
