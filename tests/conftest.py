import secrets

import pytest


@pytest.fixture
def fresh_seed() -> int:
    """A new seed every time, shown on failure: a test that states a statistical bound holds for any."""
    seed = secrets.randbelow(2**31)
    print(f"fresh_seed = {seed}")
    return seed
