import secrets
import signal

import pytest


def pytest_configure():
    """Let Ctrl-C work in tests and in what they start, also where a shell script runs them.

    A shell starts its background jobs with SIGINT ignored, and that is inherited. A handler is not: a
    process started from here begins with the system's own.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def fresh_seed() -> int:
    """A new seed every time, shown on failure: a test that states a statistical bound holds for any."""
    seed = secrets.randbelow(2**31)
    print(f"fresh_seed = {seed}")
    return seed
