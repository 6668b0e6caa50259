"""How the paper's dialect takes a step: initial batches, slow start, then Algorithm 1."""

from collections.abc import Sequence

from torch import Tensor

from pesky import rule
from pesky.torch.passes.bundle import Bundle, Part, Start
from pesky.torch.passes.rows import RowsBundle
from pesky.torch.step import decay
from pesky.torch.step.parts import count, is_collecting
from pesky.torch.step.sharing import shared_rates
from pesky.torch.step.start import collect

__all__ = ["step"]


def step(bundles: Sequence[Bundle | RowsBundle], start: Start) -> bool:
    """Let every bundle collect or learn; return whether entries stay, as they would not be finite."""
    held = False
    sharing = []
    decaying: dict[Part, Tensor] = {}
    for bundle in bundles:
        if isinstance(bundle, RowsBundle):
            held |= bundle.advance(start)
        elif is_collecting(bundle.parts[0].state, start.batches):
            collect(bundle, start, rule.START_MEMORY)
        elif bundle.parts[0].group["granularity"] == "element":
            decaying |= decay.copies_of(bundle.parts)
            held |= bundle.update()
            count(bundle)
        else:
            sharing.append(bundle)
            count(bundle)
    for bundle, rates in zip(sharing, shared_rates(sharing), strict=True):
        decaying |= decay.copies_of(bundle.parts)
        held |= bundle.descend(rates)
    return decay.pull(decaying) or held
