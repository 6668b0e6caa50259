"""Operations on many tensors at once, so that their number does not grow with that of the tensors.

All tensors of a list are on one device and of one type. What is missing among torch's own grouped
operations, sums and comparisons, is made of those that there are.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from pesky.torch.passes.reading import Expected, Reading

__all__ = [
    "averaged",
    "expected_squares",
    "norms",
    "products",
    "rates_from",
    "ratios_of",
    "sums_of_products",
    "widened",
]

Tensors: TypeAlias = tuple[Tensor, ...] | list[Tensor]
_NO_DOUBLE = ("mps",)  # devices that know no float64


def norms(tensors: Tensors, order: float) -> list[Tensor]:
    """Return each one's norm, summed up in float64 where the device has it; infinity is the largest."""
    if not tensors:
        return []
    kind = None if tensors[0].device.type in _NO_DOUBLE else torch.float64
    return list(torch._foreach_norm(tensors, order, dtype=kind))


def expected_squares(reading: Reading, tensors: Sequence[Tensor]) -> list[Expected]:
    """Let sums of squares be on their way: of each tensor of the CPU, of others by type and device."""
    found: list[Expected] = []
    alike: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for one in tensors:
        if one.is_cpu:
            found.append(reading.expect([one.detach().double().square().sum()]))
        elif one.numel() > 0:
            alike.setdefault((one.dtype, one.device), []).append(one)
    for members in alike.values():
        lengths = torch.stack(norms(members, 2)).square()
        found.append(reading.expect([lengths.sum()]))
    return found


def products(ones: Tensors, others: Tensors) -> list[Tensor]:
    """Return numbers that `sums_of_products` makes the scalar product of each pair of.

    There is no grouped sum but of sizes: the first half are sums of sizes, the second of those below 0.
    """
    entries = torch._foreach_mul(ones, others)
    sizes = norms(entries, 1)
    torch._foreach_clamp_max_(entries, 0.0)
    return [*sizes, *norms(entries, 1)]


def sums_of_products(numbers: Sequence[float]) -> list[float]:
    """Return the scalar products from the numbers of `products`."""
    half = len(numbers) // 2
    pairs = zip(numbers[:half], numbers[half:], strict=True)
    return [size - 2 * negative for size, negative in pairs]


def widened(tensors: Tensors, like: Tensors) -> list[Tensor]:
    """Return tensors in the type of others of the same shapes, which are finite."""
    if all(one.dtype == other.dtype for one, other in zip(tensors, like, strict=True)):
        return list(tensors)
    wide = torch._foreach_mul(like, 0.0)
    torch._foreach_copy_(wide, tensors)
    return list(wide)


# --- The rule's arithmetic, written for many tensors at once -------------------------------------------


def averaged(means: Tensors, samples: Tensors, memories: Tensors) -> list[Tensor]:
    """Return `rule.average` of each entry."""
    changes = torch._foreach_sub(samples, means)
    torch._foreach_div_(changes, memories)
    torch._foreach_add_(changes, means)
    return list(changes)


def ratios_of(mean_gradients: Tensors, mean_squares: Tensors) -> list[Tensor]:
    """Return g^2/v: `rule.noise_ratio`, but that numbers below the normal ones divide as the least."""
    signals = torch._foreach_mul(mean_gradients, mean_gradients)
    powers = torch._foreach_maximum(mean_squares, signals)
    torch._foreach_clamp_min_(powers, torch.finfo(powers[0].dtype).tiny)
    torch._foreach_div_(signals, powers)
    return list(signals)


def rates_from(ratios: Tensors, curvatures: Tensors) -> list[Tensor]:
    """Return `rule.learning_rate` of each entry; the ratios are used up."""
    curved = torch._foreach_mul(curvatures, curvatures)
    torch._foreach_sign_(curved)  # 0 where h^2 underflows, else 1
    torch._foreach_mul_(ratios, curved)
    torch._foreach_sub_(curved, 1.0)
    torch._foreach_div_(ratios, torch._foreach_sub(curvatures, curved))
    return list(ratios)
