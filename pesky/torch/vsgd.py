"""vSGD as a PyTorch optimizer: what a user calls. `pesky.torch` has the map of a step."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pesky import length, rule
from pesky.errors import InputError, check_count, check_number
from pesky.torch import words
from pesky.torch.checkpoints import check_keys, check_shapes, is_foreign, restore_tensors
from pesky.torch.curvature.choice import Choice, CurvatureSource
from pesky.torch.explain import Explanation, explain, mean_rates
from pesky.torch.loss.again import (
    Evaluation,
    Losses,
    Manner,
    RandomState,
    check_closure,
    first_pass,
    given_again,
    put_back,
)
from pesky.torch.loss.backward import Backward, Wanted, check_loss, scale_of
from pesky.torch.loss.pending import Pending, unscaling
from pesky.torch.loss.processes import process_group
from pesky.torch.loss.watch import Watched, Watcher, check_module, is_registered
from pesky.torch.outcome import NO_GRADIENT, NO_REPEAT, NOT_FINITE, SCALER, Outcome
from pesky.torch.passes.bundle import Part, Start
from pesky.torch.progress import Progress
from pesky.torch.settings import Granularity, check_choice, check_group, check_parameters
from pesky.torch.step import following, measuring, paper
from pesky.torch.step.collective import Collective
from pesky.torch.step.distributed import average_curvature
from pesky.torch.step.parts import (
    begin_shared,
    bundles_of,
    is_collecting,
    part_of,
    polyak_curvature,
    unusable,
)
from pesky.torch.step.places import Places

__all__ = ["VSGD"]

Dialect: TypeAlias = Literal["paper", "robust"]

_SELDOM = 4  # steps to a measurement of curvature in the robust dialect; see docs/theory.md


class VSGD(Optimizer):
    """Learning rates that set themselves ("No More Pesky Learning Rates", Schaul et al., 2013).

    At every step the rate that most decreases the expected loss is estimated for each entry of each
    parameter, from running averages of its gradient (g), squared gradient (v) and curvature (h):
    `rate = g^2 / (h v)`. The robust dialect also measures how far all entries can go together, by
    evaluating losses again, and shows the average of the parameters where that is better; see
    docs/theory.md. Nothing needs setting. Best is `minimize`; `backward(loss, again=closure)` leaves
    out the average, and without either gradients set the length.

    Args:
        params: parameters, named parameters or groups of them, as every torch optimizer takes them.
        lr: a factor on all rates, for schedulers and loops that expect one.
        granularity: what shares a rate: nothing ("element"), a tensor ("block") or a group ("global").
        dialect: "robust", or "paper" for the method exactly as it was published.
        weight_decay: L2, in the gradient and in the curvature.
        curvature_floor: a lower bound on the curvature, the paper's epsilon; None for none.
        curvature: where it comes from: "bbprop", "finite-difference", "hutchinson", or a function
            of the loss and the list of parameters that returns a tensor, or None, for each.
        curvature_every: it is measured in one of so many steps; losses are evaluated again twice as
            often. None: 4, and 1 in the paper's dialect.
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
        self._source = CurvatureSource(curvature)
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
        self._backward = Backward(self._source, self._pending)
        self._places = Places(self.state, self.collective)
        # Whether there are sparse gradients.
        self._by_rows = any(isinstance(one.get("initial"), Tensor) for one in self.state.values())
        self._inside = False  # of minimize, which swaps parameters itself
        self._manner = Manner()
        self._watched: list[Watched] = []
        self._said: set[str] = set()

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
        evaluation = Evaluation(closure, loss, state, buffers, self._manner)
        again = closure if self.counters["repeats"] else None
        self._count_source(self._backward.run(loss, self._wanted(), again, state))
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
            is_due = self._is_loss_due()
            self._pending.evaluations.append(given_again(again, loss, is_due, self._manner))

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
        # A scale that is followed, not measured, would take long to make up for a larger curvature.
        is_measuring = self.counters["form"] == "measuring"
        return Wanted(
            is_due=self._is_due(),
            parameters=self._parameters(),
            mode="saturation" if is_measuring else "gauss-newton",
            seed=self.counters["steps"],
            known_curved="bbprop" in self.counters["sources"],
        )

    def _count_source(self, source: str | None) -> None:
        if source is not None:
            sources = self.counters["sources"]
            sources[source] = sources.get(source, 0) + 1

    def _parameters(self) -> list[Tensor]:
        return [one for group in self.param_groups for one in group["params"] if one.requires_grad]

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
        return length.interval(self.counters["moves"], most)

    def _loss_every(self) -> int:
        every = (self._curvature_every() + 1) // 2
        # Statistics of the average come from these evaluations: in between, the iterate's have to do.
        return min(every, 2) if self.collective.has_statistics else every

    # --- The step --------------------------------------------------------------------------------------

    def _step(self) -> None:
        for group in self.param_groups:  # what a scheduler or a user may have set meanwhile
            for name in ("lr", "weight_decay"):
                check_number(name, float(group[name]), least=0)
        parts = self._parts()
        self._conclude(self._outcome(parts) if parts else Outcome(skipped=NO_GRADIENT))

    def _parts(self) -> list[Part]:
        parts = [
            part_of(one, self._pending.values.get(one), group, self.state[one])
            for group in self.param_groups
            for one in group["params"]
            if one.grad is not None and one.requires_grad and one.numel() > 0
        ]
        self._by_rows |= any(part.rows is not None for part in parts)
        return parts

    def _outcome(self, parts: list[Part]) -> Outcome:
        """Take a step, if losses and gradients are such that one can be taken."""
        pending = self._pending
        if pending.shown_loss is not None:
            self.progress.note_loss(pending.shown_loss)
        is_parallel = distributed.is_available() and distributed.is_initialized()
        among = process_group(self.process_group) if is_parallel else None
        if self.counters["form"] != "measuring":
            return self._advance(parts, None, among)
        if not pending.evaluations:
            raise InputError(words.NO_AGAIN)
        if not self._inside:
            self._places.enter(visible_is_iterate=True)
        losses = Losses(pending.evaluations, self.param_groups, among)
        try:
            outcome = measuring.trouble(losses, self.collective, self._places)
            return self._advance(parts, losses, among) if outcome.skipped is None else outcome
        finally:
            if not self._inside:
                self._places.stay()

    def _advance(self, parts: list[Part], losses: Losses | None, among: Any) -> Outcome:
        """Let parts collect or move, unless gradients or curvatures are missing or not finite."""
        outcome = self._make_usable(parts, among)
        if outcome.skipped is not None:
            return outcome
        start = Start(self.init_batches, self.slow_start_factor(), self.even_start)
        # What has initial batches to see waits for one with curvature.
        new = [part for part in parts if is_collecting(part.state, self.init_batches)]
        ready = [part for part in parts if part.curvature is not None or part not in new]
        bundles = bundles_of(ready, self.init_batches)
        reason = unusable(bundles, start)
        if reason is not None:
            # One such batch is the data's fault; of two in a row the last step may be the reason.
            return Outcome(skipped=reason, undo=self.progress.skipped > 0)
        if self.counters["form"] == "paper":
            outcome = Outcome(held=paper.step(bundles, start))
        elif losses is None:
            outcome = following.step(bundles, start, self.collective)
        else:
            places, interval, is_due = self._places, self._loss_every(), self._is_loss_due()
            outcome = measuring.step(bundles, start, losses, self.collective, places, interval, is_due)
        self.counters["moves"] += not new and outcome.skipped is None
        still = [part for part in new if is_collecting(part.state, self.init_batches)]
        self.counters["collecting"] = bool(still)
        return outcome

    def _make_usable(self, parts: list[Part], among: Any) -> Outcome:
        """Take factors off gradients and curvatures, and see to it that there are curvatures."""
        pending = self._pending
        measured = pending.passes > 0
        if self._is_due() and not measured and not pending.spared:
            idle = words.idle(self._idle_watched())
            raise InputError(f"{words.NO_CURVATURE}; {idle}" if idle else words.NO_CURVATURE)
        factors = unscaling(self, pending)
        if factors is None:
            return Outcome(skipped=SCALER)
        if among is None and not pending.is_finite:  # others wait for this process; gradients will tell
            return Outcome(skipped=NOT_FINITE, undo=self.progress.skipped > 0)
        weight = float(self._curvature_every()) if self.dialect == "robust" else 1.0
        for part in parts:
            part.gradient_factor, part.curvature_factor = factors
            part.curvature_weight = weight
        loss = pending.loss * factors[1]
        if among is not None and (measured or self._is_due()):
            loss = average_curvature(parts, loss, among)
        if pending.unmeasured and loss > 0:
            polyak_curvature(parts, bundles_of(parts, self.init_batches), loss)
        unreached = sum(part.curvature is None for part in parts)
        if measured and not pending.unmeasured and unreached:
            self._say("unreached", words.unreached(unreached, len(parts)))
        return Outcome()

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
            if self._watched and self.counters["steps"] >= words.IDLE:
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

    def _undo(self) -> None:
        """Go back to before the last step."""
        if self.counters["form"] == "measuring":
            self._places.undo()
            self._places.stay()
        elif self.counters["form"] == "following":
            following.undo(self.state.items(), self.collective)

    def _stop_repeating(self) -> None:
        """Go on without second evaluations, as their losses have nothing to do with the first one."""
        self.counters["repeats"] = False
        if self._source.choice == "finite-difference":
            raise InputError(f"curvature='finite-difference' needs a {words.REPEATS_NOT}")
        self.counters["form"] = "following"
        self._places.stay(self.collective.visible)
        for one in self.state:
            self._places.forget(one)
        self.collective.forget()
        self._say(
            "repeat", f"losses are evaluated again, which needs a {words.REPEATS_NOT}; going on without"
        )

    @property
    def scale(self) -> float | None:
        """The scale of the steps; None where there is none, or where lr makes all of them shorter."""
        is_full = any(float(group["lr"]) >= 1 for group in self.param_groups)
        return self.collective.scale if is_full and self.counters["form"] != "paper" else None

    def slow_start_factor(self) -> float:
        """Return C, by which the paper's dialect overestimates v and h at first."""
        if self.slow_start is not None:
            return self.slow_start
        return rule.slow_start_factor(
            sum(one.numel() for group in self.param_groups for one in group["params"])
        )

    def _say(self, name: str, message: str | None) -> None:
        """Warn once, if there is something to say."""
        if message and name not in self._said:
            self._said.add(name)
            words.say(message)

    def _idle_watched(self) -> list[str]:
        """Return the names of modules that are watched and have had no loss to see."""
        return [
            name
            for name, watcher, handle in self._watched
            if is_registered(handle) and not watcher.has_seen_loss
        ]

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
        group.setdefault("shared", begin_shared())
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
            words.say(words.FOREIGN)
            return
        check_shapes(state_dict, [one for group in self.param_groups for one in group["params"]])
        super().load_state_dict(state_dict)
        restore_tensors(self, state_dict)
        if "counters" in state_dict:
            self.counters = {"repeats": True, **deepcopy(state_dict["counters"])}
        if "collective" in state_dict:
            self.collective = Collective.from_dict(state_dict["collective"])
        self.progress = Progress.from_dict(state_dict.get("progress", {}))
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles consist of; `watch` is not copied."""
        settings = ("dialect", "curvature_every", "init_batches", "slow_start", "even_start")
        names = (*settings, "process_group", "counters", "collective", "progress", "_source")
        own = {name: getattr(self, name) for name in names}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set up what copies and pickles leave out."""
        super().__setstate__(state)
        self._prepare()
