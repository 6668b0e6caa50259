"""vSGD and bbprop for PyTorch.

One `VSGD.minimize(closure)` goes through these stages, each a folder or a file:

1. `vsgd.py`, the ways to call it, runs the closure and decides what the step wants to know;
2. `loss/` takes the loss in: backward passes and what they leave for the step (`backward.py`), a loss
   evaluated again elsewhere (`again.py`), somebody else's loop (`watch.py`);
3. `curvature/` measures the diagonal curvature of the loss: bbprop walks the graph (`walk.py`), one rule
   for each operation (`rules/`); other sources where it cannot (`choice.py`, `sources.py`);
4. `stepping.py` and `step/` turn gradients and curvatures into a step: parameters become parts, parts
   that are alike become bundles (`parts.py`), and the form decides what is done with them: `paper.py`,
   Algorithm 1; `measuring.py`, the robust form on one page; `following.py`, without second evaluations;
5. `passes/` does the arithmetic on bundles: compiled (`fused.py`, `kernels.py`), in grouped operations
   of torch (`eager.py`), or row by row (`rows.py`);
6. `progress.py` and `words.py` say what came of it, `explain.py` shows it when asked.

The arithmetic itself is in `pesky.rule` (the paper), `pesky.direction` and `pesky.length` (the robust
form). Calls go down this list, never up.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("pesky.torch needs PyTorch: pip install 'pesky[torch]'") from missing

from pesky.torch.curvature import bbprop
from pesky.torch.vsgd import VSGD

__all__ = ["VSGD", "bbprop"]
