"""The LSTM layer that CPUs run as one operation, taken apart into its cells again.

For each time: a = x U^T + y' W^T + b, split into i, f, g, o; then c = s(f) c' + s(i) tanh(g) and
y = s(o) tanh(c), where a dash marks the time before and s is the logistic function.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pesky.torch.curvature.node import Node, Tensors
from pesky.torch.curvature.rules.probe import probe_squared
from pesky.torch.curvature.rules.rule import Rule

__all__ = ["RULES"]

_LSTM = 2  # autograd's number for it; the others (GRU, plain) are recorded cell by cell


class Cell(NamedTuple):
    """What one time step computed."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor
    c_before: Tensor
    c: Tensor
    y_before: Tensor


def _forward(node: Node, times: list[int]) -> dict[int, Cell]:
    x, y, c = node.saved("input"), node.saved("hx_"), node.saved("cx_")
    U, W = node.saved("weight0"), node.saved("weight1")
    b = node.saved("weight2") + node.saved("weight3") if node.function._saved_has_biases else 0
    cells = {}
    for t in times:
        i, f, g, o = (x[t] @ U.T + y @ W.T + b).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c_before, y_before = c, y
        c = f * c_before + i * g
        y = o * c.tanh()
        cells[t] = Cell(i, f, g, o, c_before, c, y_before)
    return cells


def lstm_squared(node: Node, curvature: Tensors) -> Tensors:
    """Squared Jacobians of the cells, one after another, back through time."""
    saved = node.function
    if saved._saved_mode != _LSTM or saved._saved_batch_sizes or saved._saved_num_layers != 1:
        return probe_squared(node, curvature)
    x, U, W = node.saved("input"), node.saved("weight0"), node.saved("weight1")
    times = list(range(x.shape[0]))
    if saved._saved_reverse:
        times.reverse()
    cells = _forward(node, times)
    of_outputs, of_y, of_c = curvature[0], curvature[1], curvature[2]
    zero = torch.zeros_like(node.saved("hx_"))
    h_y, h_c = (zero if one is None else one.view_as(zero) for one in (of_y, of_c))
    of_x, of_U, of_W = torch.zeros_like(x), torch.zeros_like(U), torch.zeros_like(W)
    of_b = U.new_zeros(U.shape[0])
    for t in reversed(times):
        i, f, g, o, c_before, c, y_before = cells[t]
        if of_outputs is not None:
            h_y = h_y + of_outputs[t]
        tanh_c = c.tanh()
        h_c = h_c + h_y * (o * (1 - tanh_c.square())).square()
        h_a = torch.cat(
            [
                h_c * (g * i * (1 - i)).square(),
                h_c * (c_before * f * (1 - f)).square(),
                h_c * (i * (1 - g.square())).square(),
                h_y * (tanh_c * o * (1 - o)).square(),
            ],
            -1,
        )
        of_x[t] = h_a @ U.square()
        of_U += h_a.T @ x[t].square()
        of_W += h_a.T @ y_before.square()
        of_b += h_a.sum(0)
        h_y, h_c = h_a @ W.square(), h_c * f.square()
    return [of_x, of_U, of_W, of_b, of_b.clone(), h_y, h_c]


RULES: dict[str, Rule] = {"MkldnnRnnLayer": Rule(lstm_squared, mixes=True)}
