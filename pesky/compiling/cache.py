"""How compiled code is kept between processes, and thrown away when its sources change.

Numba's cache on disk looks at the file of the cached function only. An edit of the rule, which every
kernel calls, would go unnoticed; here the stamp is a digest of all sources the kernels are made of:
those that are loaded when a kernel's file is.
"""

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from numba.core.caching import CompileResultCacheImpl, FunctionCache

import pesky

__all__ = ["PackageCache", "sources_of"]

_PACKAGE = Path(pesky.__file__).parent
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


class PackageCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache on disk, stamped with the sources of this package."""

    _impl_class = _PackageCacheImplementation
