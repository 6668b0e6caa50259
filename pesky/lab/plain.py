"""Numbers for JSON, which knows neither infinity nor NaN."""

import math
from typing import SupportsFloat

__all__ = ["finite_or_none"]


def finite_or_none(value: SupportsFloat) -> float | None:
    """Return a plain float, or None for what is not finite."""
    number = float(value)
    return number if math.isfinite(number) else None
