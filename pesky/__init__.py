"""Learning rates that set themselves: vSGD."""

__version__ = "0.2.0"
