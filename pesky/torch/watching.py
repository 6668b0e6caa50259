"""What an optimizer makes of losses, its own and those of watched loops, before it takes a step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pesky.errors import InputError
from pesky.torch import words
from pesky.torch.loss.again import Evaluation, Unrepeatable
from pesky.torch.loss.backward import Wanted
from pesky.torch.loss.calls import Call
from pesky.torch.loss.gradients import Left
from pesky.torch.loss.head import Head, head_of
from pesky.torch.loss.rerun import Rerun
from pesky.torch.loss.watch import Watcher, repeated_loss
from pesky.torch.outcome import NO_REPEAT, Outcome
from pesky.torch.shards import is_sharded
from pesky.torch.stepping import SteppingOptimizer

__all__ = ["WatchingOptimizer"]


class WatchingOptimizer(SteppingOptimizer):
    """Knows what a step wants of a backward pass, and what watched modules report."""

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
            among=self._among(),
        )

    def _count_source(self, source: str | None) -> None:
        if source is not None:
            sources = self.counters["sources"]
            sources[source] = sources.get(source, 0) + 1

    # --- Closures that run backward --------------------------------------------------------------------

    def _closure_decides(self) -> bool:
        """Whether a closure given to `step` may be run again."""
        return self.counters["form"] != "following" and not self._has_shards()

    def _has_shards(self) -> bool:
        """Whether processes hold parts of parameters: loops of others are then not done again."""
        return any(map(is_sharded, self._all_parameters()))

    def _rerun(self, closure: Callable[[], Any]) -> Any:
        """Do a whole step on a closure that runs the backward pass; return what it returns."""
        self._decide_form(can_repeat=True)
        swaps = self.counters["form"] == "measuring" and not self._watches_model
        self._in_closure = True
        try:
            if swaps:
                self._places.follows_mode = False
                self._places.enter()
            first = Rerun(closure, self._parameters())
            self._inside = swaps
            try:
                self._take_in(first)
                self._take_step()
            except BaseException:
                first.forget_buffers()
                raise
            if swaps and self.counters["form"] == "measuring":
                self._places.show()
        except BaseException:  # KeyboardInterrupt, too
            if swaps:
                self._places.stay(self.collective.visible)
            raise
        finally:
            self._in_closure = self._inside = False
            self._pending.clear()
        return first.returned

    def _take_in(self, first: Rerun) -> None:
        """Take in what the first run of a closure left, and what is to be measured by others."""
        pending = self._pending
        pending.first_passes.insert(0, first)
        if not first.has_loss:
            self._do_without(first)
            return
        if pending.shown_loss is None:
            pending.shown_loss = first.loss
        if self.counters["form"] == "measuring":
            self.collective.has_statistics |= first.has_statistics
            pending.evaluations = pending.evaluations or [first]
        is_measured = pending.passes > 0 or pending.late or pending.spared
        if pending.left is None and self._looks_at_gradients():
            pending.left = Left(self._parameters())
        if self._is_due() and not is_measured:
            source = self._source.after_backward(self._wanted().for_levels)
            self._count_source(source)
            pending.late = [first] if source else []

    def _do_without(self, first: Rerun) -> None:
        """Refuse a closure that returns no loss, unless it left nothing, or all that is needed."""
        is_needed = self.counters["form"] == "measuring" and not self._pending.evaluations
        if is_needed and any(one.grad is not None for one in self._parameters()):
            raise InputError(
                "closure must return the loss whose backward pass it has run; "
                f"got {type(first.returned).__name__}"
            )

    # --- Watched modules -------------------------------------------------------------------------------

    @property
    def _watches_model(self) -> bool:
        """Whether passes of a watched model choose which parameters are visible."""
        return any(one.is_of_model for one in self._watched)

    def _notes_calls(self) -> bool:
        """Whether calls of watched modules may have to be done again."""
        return not self._inside and self.counters["form"] != "following"

    def _show_pass(self, watcher: Watcher, is_training: bool) -> None:
        """Let a pass of a watched module see what it is to see."""
        if watcher.is_model:
            self._show(is_training or (self.counters["trains_anyway"] and torch.is_grad_enabled()))

    def _show(self, is_training: bool) -> None:
        """Let the parameters be the iterate, or what is visible where nothing is being trained."""
        if not self._inside and not self._backward.is_running:
            self._places.turn("iterate" if is_training else self.collective.visible)

    def _watched_backward(
        self,
        call: Call | None,
        place: str | int | None,
        loss: Tensor,
        upstream: Tensor,
        scaler: Any,
    ) -> None:
        """Take in a watched loss, unless it is one of our own passes that has come to it."""
        if self._backward.is_running:
            return
        if call is not None and call.why_not() is not None and not self._watches_model:
            call = None  # which nobody expects to be done again
        self._decide_watched_form(call)
        evaluation = None
        if call is not None:
            evaluation = repeated_loss(call, place, loss, upstream, self._manner)
            self._add(evaluation, call.sources())
            if self._looks_at_gradients():
                self._backward.look_at_gradients(self._parameters())
        wanted = self._wanted()
        repeated = evaluation if self.counters["form"] != "following" else None
        source = self._backward.run_inside(loss, wanted, upstream, scaler, repeated)
        self._count_source(source)

    def _add(self, evaluation: Evaluation, calls: Sequence[Call]) -> None:
        """Add a loss of watched calls to those of this step."""
        if any(one.trains_anyway for one in calls) and not self.counters["trains_anyway"]:
            self.counters["trains_anyway"] = True
            if self.counters["form"] == "measuring" and self.collective.visible == "average":
                self._places.start_over()  # from where the gradients are
        self._pending.first_passes.append(evaluation)
        if self.counters["form"] == "measuring":
            self.collective.has_statistics |= evaluation.has_statistics
            self._pending.evaluations.append(evaluation)

    def _head(self, loss: Tensor) -> Head | None:
        """Return what is computed of watched outputs, if batches are evaluated again by it."""
        if self.counters["form"] in ("following", "paper") or self._inside or not self._watched:
            return None
        if self._has_shards():
            raise InputError(words.WATCHES_SHARDS)
        found = head_of(loss, self._parameters())
        if isinstance(found, str):
            self._see_loss()
            if self.counters["form"] is None and self._watches_model:
                self._say("repeat", words.watched(found))
            return None
        return found

    def _backward_from(self, head: Head, loss: Tensor, scale: float | None) -> None:
        """Do the backward pass of a loss that was computed of watched outputs."""
        self._see_loss()
        evaluation = head.evaluation(loss, scale or 1.0, self._manner)
        wanted = self._wanted()
        self._count_source(
            self._backward.run(loss, wanted, None, scale=scale, head=head, late=evaluation)
        )
        self._add(evaluation, head.calls)
        if self._looks_at_gradients():
            self._pending.left = Left(wanted.parameters)

    def _see_loss(self) -> None:
        for watch in self._watched:
            watch.see_loss()

    def _looks_at_gradients(self) -> bool:
        """Whether this step wants to know what happens to gradients before it."""
        return self.counters["form"] == "measuring" and (self._is_due() or self._is_loss_due())

    def _decide_watched_form(self, call: Call | None) -> None:
        """Decide on the form, if this is the first backward pass; say so if it is the lesser one."""
        if self.counters["form"] is not None:
            return
        problem = None if call is None else call.why_not()
        self._decide_form(can_repeat=call is not None and problem is None)
        if problem is not None and self._watches_model:
            self._say("repeat", words.watched(problem))

    def _take_step(self) -> None:
        """Take a step with what backward passes left, or say why losses cannot be evaluated again."""
        try:
            self._settle()
            self._step()
            self._settled()
        except Unrepeatable as problem:
            self._conclude(Outcome(skipped=NO_REPEAT), str(problem))
        finally:
            self._pending.clear()

    def _settle(self) -> None:
        """Measure what had to wait for the step, where the gradients are from."""
        if self.counters["form"] == "measuring" and self._pending.evaluations and not self._inside:
            self._places.follows_mode = self._watches_model
            self._places.enter(visible_is_iterate=not self._places.follows_mode)
        if float(getattr(self, "found_inf", None) or 0.0) > 0:  # GradScaler wants the step skipped
            self._pending.late.clear()
            self._pending.spared = True
        checks = self.counters["collecting"] or self.collective.is_repeat_due
        is_parallel = self._among() is not None
        self._backward.run_late(self._wanted(), is_parallel, checks)

    def _settled(self) -> None:
        """Decide what passes in evaluation mode see from now on."""
        if self._places.follows_mode and not self._inside:
            self.collective.choose_visible()
