"""Forward pass, backward pass and bbprop of a fully connected network, for one sample.

Every quantity of every unit lives in a flat array, layer after layer, the input first. Index
conventions: layer k maps units k to units k + 1; its weights are (units k + 1) x (units k), row-major.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pesky.compiling.compiled import compiled

__all__ = [
    "CROSS_ENTROPY",
    "IDENTITY",
    "LARGEST",
    "RELU",
    "SQUARED_ERROR",
    "TANH",
    "Samples",
    "Shape",
    "Work",
]

TANH, RELU, IDENTITY = 0, 1, 2
CROSS_ENTROPY, SQUARED_ERROR = 0, 1

LARGEST = float(np.finfo(np.float32).max)  # what settings may be at most

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class Shape(NamedTuple):
    """What a network is, apart from its parameters."""

    sizes: Integers  # units in each layer, input and output included
    unit_at: Integers  # where each layer's units start in the flat arrays of units
    weight_at: Integers  # where each layer's weights start among the parameters
    bias_at: Integers
    activation: int
    loss: int
    l2: np.float32


class Work(NamedTuple):
    """Scratch space: one number for every unit of the network in each array but the last two."""

    output: Floats  # what a unit gives to the next layer; before the loss at the last
    square: Floats  # its square
    back: Floats  # derivative of the loss by `output`
    delta: Floats  # derivative of the loss by what comes into the unit
    curvature: Floats  # bbprop's second derivative by what comes into the unit
    output_change: Floats  # directional derivative of `output`
    back_change: Floats  # directional derivative of `back`
    delta_change: Floats  # directional derivative of `delta`
    one: Floats  # a single 1 and a single 0: the row factors of biases
    zero: Floats

    @classmethod
    def of_size(cls, units: int) -> "Work":
        """Zeros for so many units."""
        per_unit = (np.zeros(units, np.float32) for _ in cls._fields[:-2])
        return cls._make((*per_unit, np.ones(1, np.float32), np.zeros(1, np.float32)))


class Samples(NamedTuple):
    """Inputs with their labels (cross-entropy) or targets (squared error); the other has no rows."""

    inputs: Floats
    labels: Integers
    targets: Floats


@compiled
def slope(activation: int, output: Any) -> Any:
    """f'(a) from z = f(a), in z's type."""
    if activation == TANH:
        return np.float32(1) - output * output
    if activation == RELU:
        return np.float32(output > 0)
    return np.float32(1)


@compiled
def activated(activation: int, total: Any) -> Any:
    """f(a), in a's type."""
    if activation == TANH:
        return np.tanh(total)
    if activation == RELU:
        return max(total, np.float32(0))
    return total


@compiled
def forward(shape: Shape, theta: Floats, work: Work) -> None:
    """Fill `work.output` from its first layer on."""
    last = shape.sizes.size - 2
    for k in range(last + 1):
        columns, rows = shape.sizes[k], shape.sizes[k + 1]
        inputs = work.output[shape.unit_at[k] : shape.unit_at[k] + columns]
        outputs = work.output[shape.unit_at[k + 1] : shape.unit_at[k + 1] + rows]
        for j in range(rows):
            start = shape.weight_at[k] + j * columns
            weights = theta[start : start + columns]
            total = np.float32(0)
            for i in range(columns):
                total += weights[i] * inputs[i]
            total += theta[shape.bias_at[k] + j]
            outputs[j] = activated(shape.activation, total) if k < last else total


@compiled
def forward_along(shape: Shape, theta: Floats, direction: Floats, scale: float, output: Any) -> None:
    """Do as `forward`, at the parameters theta - scale direction, in the type of `output`."""
    length = output.dtype.type(scale)
    last = shape.sizes.size - 2
    for k in range(last + 1):
        columns, rows = shape.sizes[k], shape.sizes[k + 1]
        inputs = output[shape.unit_at[k] : shape.unit_at[k] + columns]
        outputs = output[shape.unit_at[k + 1] : shape.unit_at[k + 1] + rows]
        for j in range(rows):
            here = slice(shape.weight_at[k] + j * columns, shape.weight_at[k] + (j + 1) * columns)
            weights, along = theta[here], direction[here]
            total = length - length
            for i in range(columns):
                total += (weights[i] - length * along[i]) * inputs[i]
            bias = shape.bias_at[k] + j
            total += theta[bias] - length * direction[bias]
            outputs[j] = activated(shape.activation, total) if k < last else total


@compiled
def head(shape: Shape, work: Work, label: int, target: Floats) -> float:
    """Loss of the sample; fill `delta` and `curvature` of the last layer."""
    start = shape.unit_at[-1]
    size = shape.sizes[-1]
    outputs = work.output[start : start + size]
    delta = work.delta[start : start + size]
    curvature = work.curvature[start : start + size]
    if shape.loss == SQUARED_ERROR:
        loss = 0.0
        for j in range(size):
            delta[j] = outputs[j] - target[j]
            curvature[j] = np.float32(1)
            loss += np.float64(delta[j]) * np.float64(delta[j])
        return loss / 2
    largest = outputs[0]
    for j in range(size):
        largest = max(largest, outputs[j])
    total = np.float32(0)
    for j in range(size):
        delta[j] = np.exp(outputs[j] - largest)
        total += delta[j]
    for j in range(size):
        probability = delta[j] / total
        delta[j] = probability
        curvature[j] = probability * (np.float32(1) - probability)
    delta[label] -= np.float32(1)
    return np.float64(np.log(total)) + np.float64(largest) - np.float64(outputs[label])


@compiled
def precise_loss(shape: Shape, output: Any, label: int, target: Floats) -> float:
    """Loss of the sample, in float64: for differences between losses."""
    start = shape.unit_at[-1]
    outputs = output[start : start + shape.sizes[-1]]
    total = 0.0
    if shape.loss == SQUARED_ERROR:
        for j in range(outputs.size):
            gap = np.float64(outputs[j]) - np.float64(target[j])
            total += gap * gap
        return total / 2
    largest = np.float64(outputs[0])
    for j in range(outputs.size):
        largest = max(largest, np.float64(outputs[j]))
    for j in range(outputs.size):
        total += np.exp(np.float64(outputs[j]) - largest)
    return np.log(total) + (largest - np.float64(outputs[label]))  # type: ignore[no-any-return]


@compiled
def backward(shape: Shape, theta: Floats, work: Work, with_curvature: bool) -> None:
    """Carry `delta`, and on demand `curvature`, from the last layer down to the first hidden one."""
    for k in range(shape.sizes.size - 2, 0, -1):
        columns, rows = shape.sizes[k], shape.sizes[k + 1]
        below = slice(shape.unit_at[k], shape.unit_at[k] + columns)
        back, delta, outputs = work.back[below], work.delta[below], work.output[below]
        curvature = work.curvature[below]
        back[:] = np.float32(0)
        if with_curvature:
            curvature[:] = np.float32(0)
        for j in range(rows):
            start = shape.weight_at[k] + j * columns
            weights = theta[start : start + columns]
            pull = work.delta[shape.unit_at[k + 1] + j]
            bend = work.curvature[shape.unit_at[k + 1] + j]
            if with_curvature:
                for i in range(columns):
                    back[i] += weights[i] * pull
                    curvature[i] += weights[i] * weights[i] * bend
            else:
                for i in range(columns):
                    back[i] += weights[i] * pull
        for i in range(columns):
            steep = slope(shape.activation, outputs[i])
            delta[i] = back[i] * steep
            if with_curvature:
                curvature[i] *= steep * steep


@compiled
def largest_powers(shape: Shape, work: Work, with_curvature: bool) -> tuple[Any, Any]:
    """Return bounds on the squared gradient's length and on any curvature, L2 apart.

    They are finite only if every squared gradient and every curvature of the sample is. As the
    gradient of a layer is an outer product, a glance at the units is enough. Fills `square` too.
    """
    power = np.float32(0)
    bend = np.float32(0)
    for k in range(shape.sizes.size - 1):
        inputs = np.float32(1)
        for i in range(shape.unit_at[k], shape.unit_at[k] + shape.sizes[k]):
            work.square[i] = work.output[i] * work.output[i]
            inputs += work.square[i]
        pulls, bends = np.float32(0), np.float32(0)
        for j in range(shape.unit_at[k + 1], shape.unit_at[k + 1] + shape.sizes[k + 1]):
            pulls += work.delta[j] * work.delta[j]
            bends += work.curvature[j]
        power += inputs * pulls
        if with_curvature:
            bend += inputs * bends
    return power, bend
