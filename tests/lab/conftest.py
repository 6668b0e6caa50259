import pytest
import torch


@pytest.fixture(autouse=True)
def one_torch_thread():
    """As runs have it; more of them only wait for each other on tensors as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
