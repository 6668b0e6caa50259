"""vSGD and bbprop for PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("pesky.torch needs PyTorch: pip install 'pesky[torch]'") from missing

from pesky.torch.curvature import bbprop
from pesky.torch.rivals import SMD, Almeida, Amari
from pesky.torch.vsgd import VSGD

__all__ = ["SMD", "VSGD", "Almeida", "Amari", "bbprop"]
