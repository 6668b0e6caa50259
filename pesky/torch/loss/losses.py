"""The losses of a step, which may be of several batches, as one number at any parameters."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from pesky.torch.loss.again import Evaluation
from pesky.torch.processes import size_of, sum_unless_failed, sums_over
from pesky.torch.settings import l2_of
from pesky.torch.shards import local_of, spread_of

__all__ = ["Losses", "gradients_of_all"]

_SAME = 0.01  # of the spread of losses: what differs by less is the same loss, computed in another way


class Losses:
    """The losses of this step's batches, in sum and with the L2 penalty, at any parameters."""

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        groups: Sequence[dict[str, Any]],
        among: Any,
        unscale: float = 1.0,
    ) -> None:
        """Compute the one at the present parameters; `among`: processes that have batches, or None.

        `unscale` takes a GradScaler's factor off weights that have it.
        """
        self._evaluations = evaluations
        self._weights = [one.weight * (unscale if one.is_scaled else 1.0) for one in evaluations]
        self._unscale = unscale
        self._among = among
        self._decayed = [(decay, group["params"]) for group in groups if (decay := l2_of(group))]
        self.rounding = max(one.rounding for one in evaluations)
        self.first = self._first()

    def repeat_first(self) -> None:
        """Make sure that the loss at the present parameters has the randomness of later ones."""
        for one in self._evaluations:
            one.repeat()
        self.first = self._first()

    def repeats(self, spread: float) -> bool:
        """Whether the loss at the present parameters, where the first one was, is the same again.

        A loss that is not, such as one of a batch that the closure draws itself, cannot be compared with
        itself elsewhere. Rounding may differ, as other kernels run where no graph is recorded, and a
        closure may do other things then: if need be, it is given one.
        """
        if self._is_first(self.again(), spread):
            return True
        return self._record_graphs() and self._is_first(self.again(), spread)

    def _is_first(self, loss: float, spread: float) -> bool:
        rounding = sqrt(self.rounding) * max(abs(loss), abs(self.first))
        return abs(loss - self.first) <= max(rounding, _SAME * spread)

    def _record_graphs(self) -> bool:
        """Let all evaluations have graphs from now on; False if they had."""
        changed = [one.record_graph() for one in self._evaluations]
        return True in changed

    def again(self, keep_buffers: bool = False) -> float:
        """Evaluate at the present parameters."""
        return self._total(lambda: [one.again(keep_buffers) for one in self._evaluations])

    def _first(self) -> float:
        means = [one.mean for one in self._evaluations if one.mean is not None]
        if len(means) < len(self._evaluations):
            return self._total(lambda: [one.loss for one in self._evaluations])
        penalty = sums_over([self._penalty()], self._among)[0] if self._decayed else 0.0
        return self._weighted(means) + penalty

    def _total(self, losses: Callable[[], Sequence[float]]) -> float:
        """Return the mean over processes, with the penalty, of what each of them finds."""
        share = 1 / size_of(self._among)
        return sum_unless_failed(lambda: share * self._weighted(losses()) + self._penalty(), self._among)

    def _weighted(self, losses: Sequence[float]) -> float:
        return sum(weight * loss for weight, loss in zip(self._weights, losses, strict=True))

    def mean(self, number: float) -> float:
        """Return the mean of a number over processes that have batches of their own."""
        return sums_over([number / size_of(self._among)], self._among)[0]

    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients at the present parameters, of this process and without the penalty."""
        found = gradients_of_all(self._evaluations, parameters)
        return [None if one is None else one * self._unscale for one in found]

    def _penalty(self) -> float:
        """Return this process's share of the penalty."""
        return sum(
            decay / 2 * float(local_of(one).double().square().sum()) * spread_of(one, self._among).share
            for decay, parameters in self._decayed
            for one in parameters
        )


def gradients_of_all(
    evaluations: Sequence[Evaluation], parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients of the sum of losses at the present parameters, one loss after the other."""
    total: list[Tensor | None] = [None] * len(parameters)
    for one in evaluations:
        pairs = zip(total, one.gradients(parameters), strict=True)
        total = [
            other if sum_ is None else sum_ if other is None else sum_ + other for sum_, other in pairs
        ]
    return total
