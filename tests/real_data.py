"""The mark of tests that read the real data sets."""

import os

import pytest


def needs_data(test):
    """Mark a test that reads the real data sets; it is skipped where they are not."""
    is_missing = pytest.mark.skipif("PESKY_DATA" not in os.environ, reason="PESKY_DATA is not set")
    return pytest.mark.data(is_missing(test))
