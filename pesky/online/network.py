"""A fully connected network: its shape, its parameters, and what it predicts."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pesky.errors import InputError, check_count, check_number
from pesky.online import passes
from pesky.online.archive import name_damage, read_arrays, write_arrays
from pesky.online.passes import LARGEST, Floats, Shape

__all__ = ["Network"]

_ACTIVATIONS = {"tanh": passes.TANH, "relu": passes.RELU, "identity": passes.IDENTITY}
_LOSSES = {"cross-entropy": passes.CROSS_ENTROPY, "squared-error": passes.SQUARED_ERROR}
_ROWS_AT_ONCE = 4096  # of a prediction, to bound its memory


class Network:
    """Affine layers with an activation between them, and a loss at the end.

    Weights start uniform in +-sqrt(6 / (inputs + outputs)) of their layer (Glorot and Bengio, 2010),
    biases at 0.

    Args:
        sizes: the units of each layer, input and output included: [784, 10] is softmax regression,
            [784, 120, 10] has a hidden layer.
        activation: what hidden units compute.
        loss: "cross-entropy" over a softmax of the outputs, or "squared-error", 1/2 |output - target|^2.
        l2: adds l2/2 |weights|^2 to the loss, biases apart.
        seed: of the weights.

    Example:

    >>> network = Network([4, 3, 2], seed=1)
    >>> network.parameters
    23
    >>> network.predict_proba([[0.0, 0.0, 0.0, 0.0]]).tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        activation: Literal["tanh", "relu", "identity"] = "tanh",
        loss: Literal["cross-entropy", "squared-error"] = "cross-entropy",
        l2: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Check the settings and draw the starting parameters."""
        if not isinstance(sizes, Sequence | np.ndarray) or isinstance(sizes, str) or len(sizes) < 2:
            raise InputError(f"sizes must list at least an input and an output layer; got {sizes!r}")
        if activation not in tuple(_ACTIVATIONS):
            raise InputError(f"activation must be one of {', '.join(_ACTIVATIONS)}; got {activation!r}")
        if loss not in tuple(_LOSSES):
            raise InputError(f"loss must be one of {', '.join(_LOSSES)}; got {loss!r}")
        self.sizes = tuple(check_count("sizes", size) for size in sizes)
        self.activation = activation
        self.loss = loss
        self.l2 = check_number("l2", l2, least=0, most=LARGEST)
        self.shape = self._lay_out()
        self.theta: Floats = np.zeros(self.parameters, np.float32)
        self.start_anew(seed)

    def _lay_out(self) -> Shape:
        sizes = np.array(self.sizes, np.int64)
        weights = sizes[:-1] * sizes[1:]
        per_layer = weights + sizes[1:]
        weight_at = np.concatenate(([0], np.cumsum(per_layer)[:-1]))
        unit_at = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        return Shape(
            sizes=sizes,
            unit_at=unit_at,
            weight_at=weight_at,
            bias_at=weight_at + weights,
            activation=_ACTIVATIONS[self.activation],
            loss=_LOSSES[self.loss],
            l2=np.float32(self.l2),
        )

    @property
    def parameters(self) -> int:
        """Number of all weights and biases, d."""
        return int(self.shape.bias_at[-1] + self.sizes[-1])

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Parameters in each block: each layer's weights, each layer's biases."""
        return tuple(block.size for layer in self.layers() for block in layer)

    def start_anew(self, seed: int) -> None:
        """Draw the starting parameters again."""
        rng = np.random.default_rng([check_count("seed", seed, least=0), 0])
        for weights, biases in self.layers():
            bound = np.sqrt(6.0 / sum(weights.shape))
            weights[:] = rng.uniform(-bound, bound, size=weights.shape)
            biases[:] = 0

    def layers(self) -> list[tuple[Floats, Floats]]:
        """Weights (outputs x inputs) and biases of each layer, as views that can be written to."""
        pairs = []
        for k, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            start, end = self.shape.weight_at[k], self.shape.bias_at[k]
            weights = self.theta[start:end].reshape(outputs, inputs)
            pairs.append((weights, self.theta[end : end + outputs]))
        return pairs

    def outputs(self, X: ArrayLike) -> Floats:
        """Return the last layer's values, before any softmax: (samples, outputs)."""
        X = self.check_inputs(X)
        parts = [self._forward(X[i : i + _ROWS_AT_ONCE]) for i in range(0, len(X), _ROWS_AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros((0, self.sizes[-1]), np.float32)

    def _forward(self, values: Floats) -> Floats:
        layers = self.layers()
        for weights, biases in layers[:-1]:
            values = values @ weights.T + biases
            if self.activation == "tanh":
                np.tanh(values, out=values)
            elif self.activation == "relu":
                np.maximum(values, 0, out=values)
        weights, biases = layers[-1]
        return np.asarray(values @ weights.T + biases)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probability of each class."""
        if self.loss != "cross-entropy":
            raise InputError(f"predict_proba needs loss='cross-entropy'; this network has {self.loss!r}")
        outputs = self.outputs(X)
        shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest class of each sample; for squared error, the outputs."""
        outputs = self.outputs(X)
        return outputs.argmax(axis=1) if self.loss == "cross-entropy" else outputs

    def error(self, X: ArrayLike, y: ArrayLike | None = None) -> float:
        """Return percent misclassified; for squared error, the mean of 1/2 |output - target|^2.

        Without `y` the targets are the inputs themselves.
        """
        inputs = self.check_inputs(X)
        targets = self.check_targets(inputs, y)
        if len(inputs) == 0:
            raise InputError("X has no samples; an error needs at least one")
        outputs = self.outputs(inputs)
        if self.loss == "cross-entropy":
            return 100.0 * float(np.mean(outputs.argmax(axis=1) != targets))
        return float(np.mean(np.sum(np.square(outputs - targets, dtype=np.float64), axis=1)) / 2)

    def check_inputs(self, X: ArrayLike) -> Floats:
        """Return the inputs as finite float32, one row a sample, or say what is wrong with them."""
        return _matrix("X", X, self.sizes[0], "inputs")

    def check_targets(self, inputs: Floats, y: ArrayLike | None) -> NDArray[Any]:
        """Return labels as integers or targets as float32, or say what is wrong with them."""
        if self.loss == "squared-error":
            targets = inputs if y is None else _matrix("y", _column(y), self.sizes[-1], "outputs")
            if targets.shape[1] != self.sizes[-1]:
                raise InputError(
                    f"y is missing, and the inputs cannot be the targets: the network has "
                    f"{self.sizes[0]} inputs and {self.sizes[-1]} outputs; give y"
                )
            return self._check_length(inputs, targets)
        if y is None:
            raise InputError("y is missing; cross-entropy needs a class label for each sample")
        labels = _array("y", y)
        if labels.ndim != 1:
            raise InputError(f"y must be a flat list of labels; got shape {labels.shape}")
        self._check_length(inputs, labels)
        if labels.dtype.kind not in "iub" and not (
            labels.dtype.kind == "f" and np.all(labels == np.floor(labels))
        ):
            raise InputError(f"y must hold whole numbers as class labels; got {labels.dtype} {y!r:.60}")
        if np.any(labels < 0) or np.any(labels >= self.sizes[-1]):
            wrong = labels[(labels < 0) | (labels >= self.sizes[-1])][0]
            raise InputError(
                f"y must hold labels from 0 to {self.sizes[-1] - 1}, one of the network's "
                f"{self.sizes[-1]} outputs; got {wrong}"
            )
        return labels.astype(np.int64)

    def _check_length(self, inputs: Floats, targets: NDArray[Any]) -> NDArray[Any]:
        if len(targets) != len(inputs):
            raise InputError(
                f"y must have one entry a sample: X has {len(inputs)}, y has {len(targets)}"
            )
        return targets

    def settings(self) -> dict[str, Any]:
        """Return what is needed to make this network again, its parameters apart."""
        return {
            "sizes": list(self.sizes),
            "activation": self.activation,
            "loss": self.loss,
            "l2": self.l2,
        }

    def save(self, path: str | Path) -> None:
        """Write settings and parameters to an ``.npz`` file, whole or not at all."""
        settings = np.array(json.dumps(self.settings()))
        write_arrays(Path(path), {"network": settings, "theta": self.theta})

    @classmethod
    def load(cls, path: str | Path) -> "Network":
        """Read what `save` wrote."""
        arrays = read_arrays(Path(path), ("network", "theta"))
        with name_damage(Path(path)):
            network = cls(**json.loads(str(arrays["network"])))
            network.set_parameters(arrays["theta"])
        return network

    def set_parameters(self, theta: NDArray[Any]) -> None:
        """Take over a flat array of all parameters: weights and biases, layer after layer."""
        if theta.shape != self.theta.shape:
            raise InputError(f"theta must have shape {self.theta.shape}; got {theta.shape}")
        if theta.dtype.kind != "f" or not np.all(np.isfinite(theta)):
            raise InputError("theta must hold finite numbers; got others")
        self.theta[:] = theta


def _array(name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers; got {values!r:.60}") from None


def _column(y: ArrayLike) -> NDArray[Any]:
    targets = _array("y", y)
    return targets[:, None] if targets.ndim == 1 else targets


def _matrix(name: str, values: ArrayLike, columns: int, meaning: str) -> Floats:
    given = _array(name, values)
    if given.dtype.kind not in "fiub":
        raise InputError(f"{name} must be an array of numbers; got {values!r:.60}")
    with np.errstate(over="ignore"):
        # Writable, because kernels are compiled for arrays that are; a copy only if need be.
        matrix = np.require(given, np.float32, ("C", "W"))
    if matrix.ndim != 2 or matrix.shape[1] != columns:
        raise InputError(
            f"{name} must have shape (samples, {columns}), the network's {meaning}; got {matrix.shape}"
        )
    if not np.all(np.isfinite(matrix)):
        row = int(np.argmin(np.isfinite(matrix).all(axis=1)))
        raise InputError(
            f"{name} must be finite in float32; row {row} has NaN, infinity or a number beyond 3e38"
        )
    return matrix
