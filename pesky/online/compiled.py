"""How the engine's functions are compiled, and how compiled code is kept between processes.

Numba's cache on disk looks at the file of the cached function only. An edit of the rule, which every
kernel calls, would go unnoticed; here the stamp is a digest of all sources the kernels are made of.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)
from numba.extending import overload, register_jitable

from pesky import collective, rule

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

for _module in (rule, collective):
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
    dispatcher._cache = _PackageCache(function)
    return dispatcher  # type: ignore[no-any-return]


@cache
def _digest_of_sources(kernels_file: str) -> str:
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    arithmetic = (Path(rule.__file__), Path(collective.__file__))
    for source in (Path(kernels_file), *arithmetic, *sorted(folder.rglob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()


class _PackageStamp:
    _py_file: str  # Numba's name for where the function stands

    def get_source_stamp(self) -> str:
        return _digest_of_sources(self._py_file)


class _Provided(_PackageStamp, UserProvidedCacheLocator):  # type: ignore[misc]
    pass


class _InTree(_PackageStamp, InTreeCacheLocator):  # type: ignore[misc]
    pass


class _UserWide(_PackageStamp, UserWideCacheLocator):  # type: ignore[misc]
    pass


class _PackageCacheImplementation(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Provided, _InTree, _UserWide]  # noqa: RUF012 (Numba's own name and type)


class _PackageCache(FunctionCache):  # type: ignore[misc]
    _impl_class = _PackageCacheImplementation
