"""The paper's idealised problem, on which every claim can be checked against a closed form.

Each sample pulls the parameters towards an optimum of its own, drawn around the common one::

    loss of a sample   1/2 sum_i h_i (theta_i - c_i)^2,   c_i ~ Normal(theta*_i, sigma_i^2)
    expected loss      1/2 sum_i h_i ((theta_i - theta*_i)^2 + sigma_i^2)

`simulate` follows one method through thousands of independent runs at once:

>>> from pesky.quadratic import SGD, VSGD, NoisyQuadratic, simulate
>>> problem = NoisyQuadratic(curvature=[1.0, 10.0], start=[5.0, 5.0])
>>> adaptive = simulate(problem, VSGD(), steps=300, runs=200)
>>> fixed = simulate(problem, SGD(0.05), steps=300, runs=200)
>>> bool(adaptive.median_excess()[-1] < fixed.median_excess()[-1])
True
"""

from pesky.quadratic.methods import SGD, Method, Oracle
from pesky.quadratic.problem import NoisyQuadratic
from pesky.quadratic.simulation import Trace, simulate
from pesky.quadratic.vsgd import VSGD

__all__ = ["SGD", "VSGD", "Method", "NoisyQuadratic", "Oracle", "Trace", "simulate"]
