"""How functions are compiled: those of the rule and of the robust form, kernels and what they call."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.extending import overload, register_jitable

from pesky import direction, length, rule
from pesky.compiling.cache import PackageCache

__all__ = ["OPTIONS", "compiled", "compiled_apart", "kernel", "largest_of"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Reciprocals may be shared and products fused with sums: faster, and the last digit may differ.
# Nothing here lets the compiler assume that numbers are finite.
_ARITHMETIC = {"arcp", "contract", "nsz"}
# Sums may be taken in any order, or they would not be vectorised.
_SUMS = {*_ARITHMETIC, "reassoc"}
# With Python's own error model a check for zero division stops vectorisation.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": _SUMS, "forceinline": True}

_RULE_OPTIONS = {**OPTIONS, "fastmath": _ARITHMETIC}

for _module in (rule, direction, length):
    for _name in _module.__all__:
        if _name != "larger":
            register_jitable(**_RULE_OPTIONS)(vars(_module)[_name])


@overload(rule.larger, jit_options=_RULE_OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _larger(one: Any, other: Any) -> Callable[..., Any]:
    """Where branches are allowed, the processor has one instruction for it."""
    return lambda one, other: one if one > other else other


def compiled(function: Function) -> Function:
    """Compile a function that kernels call."""
    return numba.njit(**OPTIONS)(function)  # type: ignore[no-any-return]


def compiled_apart(function: Function) -> Function:
    """Compile a function that kernels call from several places, and that is to stand once only."""
    return numba.njit(**{**OPTIONS, "forceinline": False})(function)  # type: ignore[no-any-return]


@compiled
def largest_of(values: Any) -> Any:
    """Return the largest of some non-negative float32.

    These are ordered like their bits read as integers, and integers the compiler compares many at a
    time; among floats it must look for NaN one by one.
    """
    bits = values.view(np.int32)
    largest = np.int32(0)
    for i in range(bits.size):
        largest = max(largest, bits[i])
    return np.int32(largest).view(np.float32)


def kernel(function: Function) -> Function:
    """Compile a function that Python calls: without the interpreter lock, and kept on disk."""
    dispatcher = numba.njit(nogil=True, **OPTIONS)(function)
    dispatcher._cache = PackageCache(function)
    return dispatcher  # type: ignore[no-any-return]


@overload(length.record_of, jit_options=_RULE_OPTIONS, strict=False)  # type: ignore[untyped-decorator]
def _record_of(numbers: Any) -> Callable[..., Any]:
    """Numba has no recarrays, and needs none: fields of its records are attributes."""
    return lambda numbers: numbers.view(length.RECORD)[0]
