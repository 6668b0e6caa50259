"""How the engine's functions are compiled, and how compiled code is kept between processes.

Numba's cache on disk looks at the file of the cached function only. An edit of the rule, which every
kernel calls, would go unnoticed; here the stamp is a digest of all sources the kernels are made of:
those that are loaded when a kernel's file is.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache
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


_PACKAGE = Path(rule.__file__).parent
# Far faster than parsing; a test parses every file and finds the same.
_IMPORT = re.compile(
    rf"^[ \t]*(?:from|import) +({_PACKAGE.name}\b[\w.]*)(?: +import +(\([^)]*\)|.*))?", re.M
)


def _imported_by(source: str) -> Iterator[str]:
    """Yield what may be a module of this package that runs when `source` does: a.b.c runs a and a.b."""
    for module, names in _IMPORT.findall(source):
        parts = module.split(".")
        yield from (".".join(parts[: n + 1]) for n in range(len(parts)))
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


def sources_of(kernels_file: str) -> list[Path]:
    """Return the file of some kernels and all files of this package that it imports, however indirectly.

    What a method does at a moment (`blocks.implements`) is among them: methods are loaded with their
    package, which the kernels import from.
    """
    found = [Path(kernels_file)]
    seen: set[str] = set()
    for path in found:  # which grows meanwhile
        for name in set(_imported_by(path.read_text(encoding="utf-8"))) - seen:
            seen.add(name)
            module = _PACKAGE.parent.joinpath(*name.split("."))
            files = (module.with_suffix(".py"), module / "__init__.py")
            found += [file for file in files if file not in found and file.is_file()]
    return sorted(found)


@cache
def _digest_of_sources(kernels_file: str) -> str:
    digest = hashlib.sha256()
    for source in sources_of(kernels_file):
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


class _PackageStamp:
    _py_file: str  # Numba's name for where the function stands

    def get_source_stamp(self) -> str:
        return _digest_of_sources(self._py_file)


class _PackageCacheImplementation(CompileResultCacheImpl):  # type: ignore[misc]
    # Where Numba would keep it too; its releases name the classes differently.
    _locator_classes = [  # noqa: RUF012 (Numba's own name and type)
        type(place.__name__, (_PackageStamp, place), {})
        for place in CompileResultCacheImpl._locator_classes
    ]


class _PackageCache(FunctionCache):  # type: ignore[misc]
    _impl_class = _PackageCacheImplementation
