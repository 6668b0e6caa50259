import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads wait for each other on a busy machine, and the models here are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
