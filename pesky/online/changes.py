"""How outputs and deltas of all units change as the parameters move along a direction.

The gradient of a block is an outer product of deltas and outputs, so these changes are all that the
product of the Hessian with that direction needs.
"""

from typing import Any

import numpy as np

from pesky.compiling.compiled import compiled
from pesky.online.passes import CROSS_ENTROPY, TANH, slope

__all__ = ["directional_pass", "product_at"]


@compiled
def directional_pass(shape: Any, theta: Any, work: Any, direction: Any) -> None:
    """Derivatives of all units' outputs and deltas when the parameters move along `direction`.

    Pearlmutter's exact product with the Hessian, in the form that a block's outer product needs:
    fills `output_change` and `delta_change`.
    """
    layers = shape.sizes.size - 1
    work.output_change[: shape.sizes[0]] = np.float32(0)
    for k in range(layers):
        columns, rows = shape.sizes[k], shape.sizes[k + 1]
        below = slice(shape.unit_at[k], shape.unit_at[k] + columns)
        outputs, changes = work.output[below], work.output_change[below]
        for j in range(rows):
            here = slice(shape.weight_at[k] + j * columns, shape.weight_at[k] + (j + 1) * columns)
            weights, along = theta[here], direction[here]
            total = direction[shape.bias_at[k] + j]
            for i in range(columns):
                total += along[i] * outputs[i] + weights[i] * changes[i]
            unit = shape.unit_at[k + 1] + j
            # Until the way back, delta_change keeps the change of what comes into the unit.
            work.delta_change[unit] = total
            if k < layers - 1:
                total *= slope(shape.activation, work.output[unit])
            work.output_change[unit] = total
    _change_of_head(shape, work)
    for k in range(layers - 1, 0, -1):
        columns, rows = shape.sizes[k], shape.sizes[k + 1]
        below = slice(shape.unit_at[k], shape.unit_at[k] + columns)
        outputs, back = work.output[below], work.back[below]
        back_change, delta_change = work.back_change[below], work.delta_change[below]
        back_change[:] = np.float32(0)
        for j in range(rows):
            here = slice(shape.weight_at[k] + j * columns, shape.weight_at[k] + (j + 1) * columns)
            weights, along = theta[here], direction[here]
            pull = work.delta[shape.unit_at[k + 1] + j]
            change = work.delta_change[shape.unit_at[k + 1] + j]
            for i in range(columns):
                back_change[i] += along[i] * pull + weights[i] * change
        for i in range(columns):
            steep = slope(shape.activation, outputs[i])
            bent = np.float32(0)
            if shape.activation == TANH:
                bent = -(outputs[i] + outputs[i]) * steep
            delta_change[i] = steep * back_change[i] + bent * delta_change[i] * back[i]


@compiled
def _change_of_head(shape: Any, work: Any) -> None:
    start = shape.unit_at[-1]
    size = shape.sizes[-1]
    change = work.output_change[start : start + size]
    delta_change = work.delta_change[start : start + size]
    if shape.loss != CROSS_ENTROPY:
        delta_change[:] = change
        return
    outputs = work.output[start : start + size]
    largest = outputs[0]
    for j in range(size):
        largest = max(largest, outputs[j])
    total, weighted = np.float32(0), np.float32(0)
    for j in range(size):
        share = np.exp(outputs[j] - largest)
        total += share
        weighted += share * change[j]
    for j in range(size):
        probability = np.exp(outputs[j] - largest) / total
        delta_change[j] = probability * (change[j] - weighted / total)


@compiled
def product_at(
    row: Any, column: Any, row_change: Any, column_change: Any, l2: Any, direction: Any
) -> Any:
    """Return an entry of the product, from what its block has for its row and its column."""
    return row_change * column + row * column_change + l2 * direction
