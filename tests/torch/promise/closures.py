"""Losses that users come with: unusual ones, which must work, and what is no loss at all."""

import numpy as np
import torch

__all__ = ["ODD", "REPEATABLE", "TO_REFUSE", "odd_closure"]

REPEATABLE = ("negative", "zero", "flat", "half", "bfloat16", "double", "one entry", "penalty", "scaled")
ODD = (*REPEATABLE, "own backward")
TO_REFUSE = ("float", "list", "none", "numpy", "several", "no grad", "integer", "complex", "unrelated")


def odd_closure(kind, model, x, y):
    """Return a closure of this kind."""

    def closure():
        loss = model(x, y)
        if kind == "own backward":  # as LBFGS wants it
            loss.backward()
        if kind == "penalty":
            loss = loss + _penalty(model, x)
        return _changed(kind, loss)

    return closure


def _penalty(model, x):
    """How the outputs change with the inputs; with some parameter, where inputs are words."""
    if x.is_floating_point():
        x = along = x.to(model.head.weight.dtype).clone().requires_grad_()
    else:
        along = next(one for one in model.learning() if one.requires_grad)
    slope = torch.autograd.grad(model.outputs(x).square().sum(), along, create_graph=True)[0]
    return slope.to_dense().square().mean()


def _changed(kind, loss):
    simple = {
        "negative": lambda: loss - 100,
        "zero": lambda: loss * 0,
        "flat": lambda: loss * 0 + 3,
        "half": loss.half,
        "bfloat16": loss.bfloat16,
        "double": loss.double,
        "one entry": lambda: loss.reshape(1, 1),
        "scaled": lambda: loss * 1e-6,
        "float": loss.item,
        "list": lambda: [loss],
        "none": lambda: None,
        "numpy": lambda: np.float64(loss.item()),
        "several": lambda: loss.repeat(2),
        "no grad": loss.detach,
        "integer": lambda: torch.tensor(3),
        "complex": lambda: torch.complex(loss.float(), loss.float()),
        "unrelated": lambda: torch.ones((), requires_grad=True),
    }
    return simple[kind]() if kind in simple else loss
