"""What a step does: from the gradients and curvatures that backward passes left to its outcome."""

from copy import deepcopy
from math import inf, log2
from typing import Any

from torch import Tensor, distributed
from torch.optim import Optimizer

from pesky import length, rule
from pesky.errors import InputError, check_number
from pesky.torch import words
from pesky.torch.checkpoints import (
    check_keys,
    check_shapes,
    give_levels,
    is_foreign,
    restore_tensors,
    without_previous,
)
from pesky.torch.curvature.choice import CurvatureSource
from pesky.torch.loss.again import Losses, Manner
from pesky.torch.loss.backward import Backward, Pending, unscaling
from pesky.torch.loss.processes import process_group
from pesky.torch.loss.watch import Watched, is_registered
from pesky.torch.outcome import NO_GRADIENT, NO_REPEAT, NOT_FINITE, SCALER, Outcome
from pesky.torch.passes.bundle import Part, Start
from pesky.torch.progress import Progress
from pesky.torch.settings import check_flag, check_group, check_parameters
from pesky.torch.step import following, measuring, paper
from pesky.torch.step.collective import Collective
from pesky.torch.step.direction import foresee
from pesky.torch.step.distributed import average_curvature
from pesky.torch.step.levels import forget_level, has_level
from pesky.torch.step.parts import (
    Bundles,
    begin_shared,
    bundles_of,
    forget_beyond,
    is_collecting,
    part_of,
    polyak_curvature,
    unusable,
)
from pesky.torch.step.places import Places

__all__ = ["SteppingOptimizer"]

_SELDOM = 8  # steps from one loss that is evaluated again to the next, at most; see docs/theory.md
_CALM_SHARE = 0.025  # of the moves since the last accident, which that number grows to


class SteppingOptimizer(Optimizer):
    """Takes steps, keeps count and saves itself; how it is called is the subject of `VSGD`."""

    _step_supports_amp_scaling = True  # GradScaler then sets `grad_scale` and `found_inf` before step()

    # Settings; `VSGD` says what they mean.
    dialect: str
    curvature_every: int | None
    init_batches: int
    slow_start: float | None
    even_start: bool
    process_group: Any
    _source: CurvatureSource
    # What happened so far; saved with the state.
    counters: dict[str, Any]
    collective: Collective
    progress: Progress

    def _begin(self) -> None:
        """Set up what is saved with the state."""
        self.counters = {
            "steps": 0,  # those skipped apart
            "moves": 0,  # steps in which nothing had to be collected
            "collecting": True,  # whether something has initial batches to see
            "skipped": {},  # by reason
            "sources": {},  # of curvature, by name
            "measured": None,  # moves before the last step with curvature; None: the next one needs it
            "accident": 0,  # moves before the last step that was too long
            "form": "paper" if self.dialect == "paper" else None,  # or measuring, following; None: open
            "repeats": True,  # whether a closure that is called again computes the same loss
        }
        self.collective = Collective()
        self.progress = Progress()

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

    # --- What is measured, and when --------------------------------------------------------------------

    def _parameters(self) -> list[Tensor]:
        return [one for group in self.param_groups for one in group["params"] if one.requires_grad]

    def _is_due(self) -> bool:
        """Whether this step needs curvature."""
        last = self.counters["measured"]
        if self.counters["collecting"] or last is None:
            return True
        return bool(self.counters["moves"] - last >= self._curvature_every())

    def _is_loss_due(self) -> bool:
        """Whether this step evaluates its loss again."""
        return bool(self.counters["moves"] % self._loss_every() == 0)

    def _curvature_every(self) -> float:
        if self.dialect == "paper":
            return self.curvature_every or 1
        # Rows that are seldom touched would wait long for a curvature that they have a part in.
        most = self.curvature_every or (1 if self._by_rows else inf)
        return length.interval(self.counters["moves"], most)

    def _loss_every(self) -> int:
        """Return how many steps there are to a loss that is evaluated again, a power of two."""
        calm = self.counters["moves"] - self.counters["accident"]
        most = min(_SELDOM, self.curvature_every or _SELDOM)
        return 1 << int(log2(max(1.0, min(most, _CALM_SHARE * calm))))

    # --- The step --------------------------------------------------------------------------------------

    def _step(self) -> None:
        for group in self.param_groups:  # what a scheduler or a user may have set meanwhile
            for name in ("lr", "weight_decay"):
                check_number(name, float(group[name]), least=0)
            check_flag("decoupled_weight_decay", group["decoupled_weight_decay"])
        parts = self._parts()
        self._conclude(self._outcome(parts) if parts else Outcome(skipped=NO_GRADIENT))

    def _parts(self) -> list[Part]:
        has_levels = self.dialect == "robust"
        parts = [
            part_of(one, self._pending.values.pop(one, None), group, self.state[one], has_levels)
            for group in self.param_groups
            for one in group["params"]
            if one.grad is not None and one.requires_grad and one.numel() > 0
        ]
        self._by_rows |= any(part.rows is not None for part in parts)
        return parts

    def _outcome(self, parts: list[Part]) -> Outcome:
        """Take a step, if losses and gradients are such that one can be taken."""
        pending = self._pending
        is_parallel = distributed.is_available() and distributed.is_initialized()
        among = process_group(self.process_group) if is_parallel else None
        if self.counters["form"] != "measuring":
            bundles = self._begin_passes(parts, among)
            self._note_loss()
            return self._advance(parts, None, among, bundles)
        if not pending.evaluations:
            raise InputError(words.NO_AGAIN)
        if not self._inside:
            self._places.enter(visible_is_iterate=True)
        losses = Losses(pending.evaluations, self.param_groups, among, pending.reading)
        try:
            bundles = self._begin_passes(parts, among)
            self._note_loss()
            outcome = measuring.trouble(losses, self.collective, self._places)
            if outcome.skipped is not None:
                return outcome
            if outcome.changed:
                self._start_anew(losses.first)
            return self._advance(parts, losses, among, bundles)
        finally:
            if not self._inside:
                self._places.stay()

    def _start_anew(self, loss: float) -> None:
        """Go on with data that has changed: what is known weighs no more than initial batches do."""
        self._places.start_over()
        self.collective.start_anew()
        length.add_loss(self.collective, loss)
        for state in (*self.state.values(), *(group["shared"] for group in self.param_groups)):
            forget_beyond(state, float(self.init_batches))
        self.counters |= {"moves": 0, "accident": 0, "measured": None}

    def _note_loss(self) -> None:
        shown = self._pending.shown_loss
        if shown is not None:
            self.progress.note_loss(shown)

    def _begin_passes(self, parts: list[Part], among: Any) -> Bundles | None:
        """Let passes on devices begin before the host knows the loss, so that it waits only once.

        None where that has to come first: what is measured, scaled or shared with other processes.
        """
        pending = self._pending
        is_scaled = getattr(self, "found_inf", None) is not None
        if pending.passes or not pending.spared or is_scaled or among is not None:
            return None
        if all(part.theta.is_cpu for part in parts):
            return None
        return self._bundles(parts)

    def _bundles(self, parts: list[Part]) -> Bundles:
        """Return what can be worked on together; what has initial batches to see waits for curvature."""
        ready = [
            part
            for part in parts
            if part.curvature is not None or not is_collecting(part.state, self.init_batches)
        ]
        bundles = bundles_of(ready, self.init_batches, self._pending.reading)
        foresee(bundles, self._start())
        if self.counters["form"] == "following":
            following.foresee(bundles, self.collective)
        return bundles

    def _start(self) -> Start:
        return Start(self.init_batches, self.slow_start_factor(), self.even_start)

    def _advance(
        self, parts: list[Part], losses: Losses | None, among: Any, bundles: Bundles | None
    ) -> Outcome:
        """Let parts collect or move, unless gradients or curvatures are missing or not finite."""
        outcome = self._make_usable(parts, among)
        if outcome.skipped is not None:
            return outcome
        start = self._start()
        new = [part for part in parts if is_collecting(part.state, self.init_batches)]
        if bundles is None:
            bundles = self._bundles(parts)
        reason = unusable(bundles, start)
        if reason is not None:
            # One such batch is the data's fault; of two in a row the last step may be the reason.
            return Outcome(skipped=reason, undo=self._suspect())
        accidents, has_curvature = self._accidents(), any(part.curvature is not None for part in parts)
        if self.counters["form"] == "paper":
            outcome = Outcome(held=paper.step(bundles, start))
        elif losses is None:
            outcome = following.step(bundles, start, self.collective)
        else:
            places, interval, is_due = self._places, self._loss_every(), self._is_loss_due()
            outcome = measuring.step(bundles, start, losses, self.collective, places, interval, is_due)
        self._note_curvature(has_curvature, accidents, bool(new))
        self.counters["moves"] += not new and outcome.skipped is None
        still = [part for part in new if is_collecting(part.state, self.init_batches)]
        self.counters["collecting"] = bool(still)
        return outcome

    def _suspect(self) -> bool:
        """Whether this is the second bad batch in a row."""
        return self.progress.skipped > 0

    def _accidents(self) -> float:
        """Return how many steps were too long so far."""
        return self.collective.shortened + self.collective.restored

    def _note_curvature(self, is_measured: bool, accidents: float, is_initial: bool) -> None:
        """Note when a move measured curvature, and accidents."""
        if self.dialect == "robust" and self._accidents() > accidents:
            self._note_accident()
        elif is_initial:
            self.counters["measured"] = None
        elif is_measured:
            self.counters["measured"] = self.counters["moves"]

    def _note_accident(self) -> None:
        """Measure curvature in the next step, and losses more often for a while."""
        self.counters |= {"measured": None, "accident": self.counters["moves"]}

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
            return Outcome(skipped=NOT_FINITE, undo=self._suspect())
        for part in parts:
            part.gradient_factor, part.curvature_factor = factors
        loss = pending.loss * factors[1]
        shown = pending.shown_loss or 0.0
        if among is not None and (measured or self._is_due()):
            loss, shown = average_curvature(parts, (loss, shown), among)
        if pending.unmeasured and loss > 0:
            polyak_curvature(parts, bundles_of(parts, self.init_batches), loss)
        elif measured and shown:
            self._make_curved(parts, abs(shown))
        unreached = sum(part.curvature is None for part in parts)
        if measured and not pending.unmeasured and unreached:
            self._say("unreached", words.unreached(unreached, len(parts)))
        return Outcome()

    def _make_curved(self, parts: list[Part], loss: float) -> None:
        """Give tensors that the loss is linear in, and that have a gradient, Polyak's curvature."""
        flat = []
        for part in parts:
            if part.curvature is None or not has_level(part.state):
                continue
            if bool(part.curvature.any()):
                part.state["is_flat"] = False
            elif part.state["is_flat"]:
                flat.append(part)
        if flat:
            polyak_curvature(flat, bundles_of(parts, self.init_batches), loss)

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
        """Go back to before the last step, and see how curved the loss is there."""
        self._note_accident()
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
        for one, state in self.state.items():
            self._places.forget(one)
            forget_level(state)  # it may come from two losses that have nothing to do with each other
        self.counters["measured"] = None
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
            check_parameters(group["params"], group.get("param_names"))
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
        state_dict = without_previous(state_dict)
        check_shapes(state_dict, [one for group in self.param_groups for one in group["params"]])
        super().load_state_dict(state_dict)
        restore_tensors(self, state_dict)
        if "counters" in state_dict:
            self.counters = {
                "repeats": True,
                "measured": None,
                "accident": 0,
                **deepcopy(state_dict["counters"]),
            }
        if "collective" in state_dict:
            self.collective = Collective.from_dict(state_dict["collective"])
        if self.dialect == "robust" and give_levels(self.state.values()):
            self.counters["measured"] = None
            self.collective.forget()  # lengths were along other directions
        self.progress = Progress.from_dict(state_dict.get("progress", {}))
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles consist of; `watch` is not copied."""
        settings = ("dialect", "curvature_every", "init_batches", "slow_start", "even_start")
        names = (*settings, "process_group", "counters", "collective", "progress", "_source")
        own = {name: getattr(self, name) for name in names}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set up what copies and pickles leave out; torch loads a `state_dict` through here, too."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("decoupled_weight_decay", False)  # which groups of up to 0.2 do not have
        self._prepare()
