"""Interrupts between any two lines of the library."""

import sys
from pathlib import Path

import torch

import pesky.torch

__all__ = ["interrupted"]

# The walk over the graph, in a folder of its own, keeps nothing.
_FILES = {str(one) for one in Path(pesky.torch.__file__).parent.glob("*.py")}


def interrupted(action, is_due):
    """Do something, with Ctrl-C before the first line of ours that is due; whether there was one."""

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in _FILES:
            return None
        if event == "line" and is_due((frame.f_code.co_filename, frame.f_lineno)):
            raise KeyboardInterrupt
        return trace

    present, grad_mode = sys.gettrace(), torch.is_grad_enabled()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(present)
        # Between the end of a block and the exit of its `with torch.no_grad()` nobody can be safe.
        torch.set_grad_enabled(grad_mode)
    return False
