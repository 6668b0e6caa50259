"""When losses of fresh batches have risen: did the last steps run away, or has the data changed?

A sum of how far losses are above their mean, in standard deviations less one, each counted as two at
most, tells a rise from chance (Page, 1954): five or more unusual batches must come nearly in a row. The
average of the iterates, on the same batch, then tells whose fault it is. See docs/theory.md.
"""

from math import log

from pesky import length
from pesky.torch.step.collective import Collective

__all__ = ["has_run_away", "is_raised", "rebase"]

_UNUSUAL = 2.0  # standard deviations: a batch counts as no more, be it an outlier
_ALLOWANCE = 1.0  # standard deviations that are taken off each time, so that chance leads nowhere
_THRESHOLD = 4.0  # at least; it grows with the logarithm of the moves, or chance would pass it some day
_VISIBLE = 1e-3  # of the loss: less is no rise, however little losses differ


def is_raised(collective: Collective, loss: float) -> bool:
    """Take in the loss of a fresh batch; return whether it is the last of a rise."""
    if min(collective.loss_memory, collective.averaged) < length.FEWEST:
        return False
    if collective.excess == 0:  # while there is one, it is measured by what was usual before
        collective.calm_loss = collective.loss
        collective.calm_spread = max(length.spread(collective), _VISIBLE * abs(collective.loss))
    if collective.calm_spread == 0:
        return False
    rise = (loss - collective.calm_loss) / collective.calm_spread
    collective.excess = max(0.0, collective.excess + min(rise, _UNUSUAL) - _ALLOWANCE)
    return collective.excess > max(_THRESHOLD, log(collective.averaged))


def has_run_away(collective: Collective, loss: float, of_average: float) -> bool:
    """Whether the average of the iterates is free of most of the rise: then steps are to blame."""
    return loss - of_average > (loss - collective.calm_loss) / 2


def rebase(collective: Collective) -> None:
    """Begin to sum up anew."""
    collective.excess = 0.0
