"""Learning rates that set themselves: vSGD."""

__version__ = "0.1.0"
