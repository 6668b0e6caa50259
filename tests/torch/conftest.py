import os

import pytest
import torch

from pesky.torch.curvature import walk


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads wait for each other on a busy machine, and the models here are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def without_fused_layers():
    """Where `tests/portable.py` asks for it: an LSTM is many nodes, as on processors without oneDNN."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = before and not os.environ.get("PESKY_NO_MKLDNN")
    yield
    torch.backends.mkldnn.enabled = before


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    """What bbprop says once in a process, it says in every test: none may rely on another's."""
    monkeypatch.setattr(walk, "_reported", set())
