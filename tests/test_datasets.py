"""Until `torch/test_start.py` imports from `tests.real_data`."""

from tests.real_data import needs_data

__all__ = ["needs_data"]
