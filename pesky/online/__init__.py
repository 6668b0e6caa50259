"""Networks trained one sample at a time, at the speed of memory.

>>> import numpy as np
>>> from pesky.online import VSGD, Network, fit
>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(2000, 2))
>>> y = (X[:, 0] * X[:, 1] > 0).astype(int)
>>> network = Network([2, 16, 2], l2=1e-4)
>>> result = fit(network, VSGD(slow_start=100), X, y, epochs=10)
>>> result.status, network.error(X, y) < 10
('finished', True)
"""

from pesky.online.fitting import FitResult, Moment, fit
from pesky.online.learner import Learner
from pesky.online.methods import SGD, SMD, VSGD, AdaGrad, Almeida, Amari, Method
from pesky.online.network import Network

# Raised by hand whenever the same settings, data and seed no longer give the same numbers.
NUMERICS_VERSION = 1

__all__ = [
    "NUMERICS_VERSION",
    "SGD",
    "SMD",
    "VSGD",
    "AdaGrad",
    "Almeida",
    "Amari",
    "FitResult",
    "Learner",
    "Method",
    "Moment",
    "Network",
    "fit",
]
