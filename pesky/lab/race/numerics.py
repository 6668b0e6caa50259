"""Which version of the arithmetic a row is from."""

from pesky.online import NUMERICS_VERSION

__all__ = ["arithmetic_version", "numerics_version"]

# Raised by hand, as NUMERICS_VERSION is, when the numbers of one method alone change.
_CHANGES = {"vsgd-robust": 1}


def numerics_version(method: str) -> int:
    """Return the version of a method's numbers."""
    return NUMERICS_VERSION + _CHANGES.get(method, 0)


def arithmetic_version() -> int:
    """Return a number that grows with every method's version."""
    return NUMERICS_VERSION + sum(_CHANGES.values())
