"""Checkpoints that older versions wrote, in the words of this one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pesky import length
from pesky.online.methods.robust import block_means
from pesky.online.methods.robust_levels import start_counts

__all__ = ["without_curvatures"]


def without_curvatures(
    counters: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the content of a file of format 1 as one of format 2 has it.

    Only the robust form differs: it had a curvature and a memory a parameter. Its levels are yet to be
    measured, and as lengths were along other directions, they are, too.
    """
    method = counters["method"]
    if method.get("dialect") != "robust":
        return counters, arrays
    every = None if method["curvature_every"] == 1 else method["curvature_every"]  # 1 was the default
    sizes, squares = arrays["state.sizes"], arrays["state.mean_square"]
    if sizes.ndim != 1 or np.any(sizes < 1) or squares.shape != (sizes.sum(),):
        raise ValueError("the sizes of its blocks do not fit its averages")
    zeros = np.zeros(sizes.size)
    state = {
        "level_square": zeros,
        "typical_square": block_means(squares, sizes),
        "memory": block_means(arrays["state.memory"], sizes),
        "weight": zeros,
        "level": zeros,
        "inverse": zeros,
        "counts": start_counts(),
        "numbers": length.start_array(),
    }
    return (
        {**counters, "method": {**method, "curvature_every": every}},
        {**arrays, **{f"state.{name}": array for name, array in state.items()}},
    )
