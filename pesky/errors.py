"""The one exception that tells a user what to change, and the checks that raise it."""

import math
import reprlib
import sys
from contextlib import suppress
from numbers import Real
from typing import SupportsInt

__all__ = ["InputError", "check_count", "check_number"]


class InputError(ValueError):
    """Bad input. The message names the argument, the value and the fix in one line."""


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return ``value`` as a finite float > ``above``, >= ``least`` and <= ``most``, or raise."""
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer beyond all floats
            number = float(value)
            if math.isfinite(number) and above < number and least <= number <= most:
                return number
    bounds = {"above": above, "of at least": least, "of at most": most}
    wanted = [f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound)]
    raise InputError(
        f"{name} must be a finite number{' ' * bool(wanted)}{' and '.join(wanted)}; got {_shown(value)}"
    )


def check_count(name: str, value: object, *, least: int = 1, most: int = sys.maxsize) -> int:
    """Return ``value`` as a whole number from ``least`` to ``most``, or raise.

    The largest that NumPy can count to is ``sys.maxsize``.
    """
    if isinstance(value, Real) and isinstance(value, SupportsInt) and not isinstance(value, bool):
        with suppress(OverflowError, ValueError):  # infinity and NaN
            count = int(value)
            if count == value and least <= count <= most:
                return count
    raise InputError(f"{name} must be a whole number from {least} to {most}; got {_shown(value)}")


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number too long to show"
