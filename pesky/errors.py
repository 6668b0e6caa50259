"""The one exception that tells a user what to change, and the checks that raise it."""

import math
from numbers import Real

__all__ = ["InputError", "check_count", "check_number"]


class InputError(ValueError):
    """Bad input. The message names the argument, the value and the fix in one line."""


def check_number(
    name: str, value: object, *, above: float = -math.inf, least: float = -math.inf
) -> float:
    """Return ``value`` as a finite float that is > ``above`` and >= ``least``, or raise."""
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and number > above and number >= least:
            return number
    bound = f" above {above:g}" if above > -math.inf else f" of at least {least:g}"
    wanted = "a finite number" + (bound if max(above, least) > -math.inf else "")
    raise InputError(f"{name} must be {wanted}; got {value!r}")


def check_count(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value`` as a whole number of at least ``least``, or raise."""
    if isinstance(value, Real) and not isinstance(value, bool) and float(value).is_integer():
        count = int(float(value))
        if count >= least:
            return count
    raise InputError(f"{name} must be a whole number of at least {least}; got {value!r}")
