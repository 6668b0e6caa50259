"""Parameters of which a process holds a part only (DTensors, as `fully_shard` makes them).

A step works on the part that is here, as if it was a parameter of its own. What it has to know about
whole tensors is summed over processes: each adds its part, times its share of it, as replicas hold the
same entries several times.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from torch import Tensor, nn

from pesky.errors import InputError
from pesky.torch.processes import is_distributed, largest_over, process_group, size_of, sums_over

__all__ = [
    "Spread",
    "block_of",
    "gradient_here",
    "group_of",
    "is_anywhere",
    "is_sharded",
    "largest_of",
    "local_of",
    "mean_here",
    "spread_of",
    "spreads_of",
    "sums_of",
    "whole_like",
]


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:  # without looking further, many times
        return False
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def local_of(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that is here: the same object each time, unlike `to_local()`."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor) if is_sharded(tensor) else tensor
    return local


def gradient_here(parameter: Tensor) -> Tensor | None:
    """Return the part of a parameter's gradient that is here, as much as of the parameter is."""
    gradient = parameter.grad
    if gradient is None or not is_sharded(gradient):
        return gradient
    wanted: Any = parameter
    if gradient.placements != wanted.placements:  # type: ignore[attr-defined]
        gradient = gradient.redistribute(placements=wanted.placements)  # type: ignore[attr-defined]
    return local_of(gradient)


class Spread(NamedTuple):
    """How the entries of a tensor are spread over processes."""

    group: Any  # of the processes
    share: float  # of each copy of an entry: 1 over the number of copies
    entries: int  # of the whole tensor
    is_cut: bool  # whether a process has some of them only


def group_of(parameters: Sequence[Tensor], setting: Any) -> Any:
    """Return the group of the processes that train together, or None; see `process_group`.

    Where parameters are sharded, these are the processes that hold them.
    """
    if not is_distributed():
        return None
    meshes = {one.device_mesh for one in parameters if is_sharded(one)}  # type: ignore[attr-defined]
    sizes = {mesh.size() for mesh in meshes}
    if not sizes or sizes == {1}:
        return process_group(setting)
    if setting is False:
        raise InputError(
            "process_group must not be False for parameters that are sharded (DTensors): their numbers "
            "have to be summed over processes; leave it out"
        )
    group = process_group(setting)
    if sizes == {size_of(group)}:
        return group
    if setting is None and len(meshes) == 1 and next(iter(meshes)).ndim == 1:
        return next(iter(meshes)).get_group()
    raise InputError(
        f"process_group must have the processes that hold the parameters, {sorted(sizes)} of them; "
        f"got one of {size_of(group)}: parameters of other meshes need an optimizer of their own"
    )


def spread_of(parameter: Tensor, group: Any) -> Spread:
    """Return how a parameter is spread over the processes of a group."""
    if not is_sharded(parameter):
        return Spread(group, 1 / size_of(group), parameter.numel(), False)
    parts = prod(_parts_of(parameter))
    return Spread(group, parts / size_of(group), parameter.numel(), parts > 1)


def _parts_of(parameter: Tensor) -> list[int]:
    """Return how many parts a sharded tensor is cut into by each dimension of its mesh that cuts it."""
    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return [mesh.size(k) for k, one in enumerate(placements) if not one.is_replicate()]


def spreads_of(parameters: Sequence[Tensor], group: Any) -> dict[Tensor, Spread]:
    """Return how parameters are spread over the processes of a group; nothing if none is sharded.

    Where some are, the others count as spread, too: what is summed over all of them has to agree.
    """
    if group is None or not any(map(is_sharded, parameters)):
        return {}
    return {one: spread_of(one, group) for one in parameters}


def is_anywhere(is_here: bool, parameters: Sequence[Tensor], group: Any) -> bool:
    """Whether something is so in any of the processes that hold parts of parameters."""
    if group is None or not any(map(is_sharded, parameters)):
        return is_here
    return largest_over([float(is_here)], group) == [1.0]


def sums_of(numbers: Sequence[float], spreads: Sequence[Spread | None]) -> list[float]:
    """Return numbers about whole tensors from those about their parts here, in one message.

    They must be such that parts add up. What is not spread is whole already.
    """
    shares = [1.0 if one is None else one.share for one in spreads]
    weighed = [number * share for number, share in zip(numbers, shares, strict=True)]
    return _together(weighed, spreads, sums_over)


def largest_of(numbers: Sequence[float], spreads: Sequence[Spread | None]) -> list[float]:
    """Return the largest numbers about whole tensors from those about their parts here, likewise."""
    return _together(numbers, spreads, largest_over)


def _together(
    numbers: Sequence[float],
    spreads: Sequence[Spread | None],
    over: Callable[[Sequence[float], Any], list[float]],
) -> list[float]:
    cut = {k: one.group for k, one in enumerate(spreads) if one is not None}
    if not cut:
        return list(numbers)
    (group,) = set(cut.values())
    whole = dict(zip(cut, over([numbers[k] for k in cut], group), strict=True))
    return [whole.get(k, number) for k, number in enumerate(numbers)]


def block_of(parameter: Tensor) -> tuple[slice, ...] | None:
    """Return which entries of a tensor are here; None for all."""
    if not is_sharded(parameter) or not _parts_of(parameter):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(
        parameter.shape,
        parameter.device_mesh,  # type: ignore[attr-defined]
        parameter.placements,  # type: ignore[attr-defined]
    )
    return tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))


def whole_like(parameter: Tensor, local: Tensor) -> Tensor:
    """Return the tensor whose part here is `local`, spread as a parameter is; `local` if that is not."""
    if not is_sharded(parameter):
        return local
    from torch.distributed.tensor import DTensor

    found: Tensor = DTensor.from_local(
        local,
        parameter.device_mesh,  # type: ignore[attr-defined]
        parameter.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return found


def mean_here(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return the part, of the mean of all processes' tensors, that is here of a sharded parameter."""
    from torch.distributed.tensor import DTensor, Partial

    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    total = DTensor.from_local(whole, mesh, [Partial()] * mesh.ndim, run_check=False)
    here: Tensor = local_of(total.redistribute(placements=placements)) / mesh.size()
    return here
