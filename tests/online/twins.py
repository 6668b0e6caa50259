"""The slow twin of every method of the online engine."""

import math

from tests.online.reference import (
    Model,
    TwinAdaGrad,
    TwinAlmeida,
    TwinAmari,
    TwinSGD,
    TwinSMD,
    twin_vsgd,
)
from tests.online.robust_twin import TwinRobust


def twin_of(method, network):
    """Return the twin of an engine method with its settings, on a copy of the network."""
    model = Model(network)
    if method.name == "vsgd" and method.dialect == "robust":
        every = method.curvature_every or math.inf
        return TwinRobust(model, floor=method.curvature_floor or 0.0, every=every)
    if method.name == "vsgd":
        return twin_vsgd(
            model,
            method.granularity,
            C=method.slow_start,
            dialect=method.dialect,
            floor=method.curvature_floor or 0.0,
            every=method.curvature_every,
        )
    twins = {
        "sgd": TwinSGD,
        "adagrad": TwinAdaGrad,
        "amari": TwinAmari,
        "almeida": TwinAlmeida,
        "smd": TwinSMD,
    }
    return twins[method.name](model, **vars(method))
