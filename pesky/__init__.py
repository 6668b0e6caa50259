"""Learning rates that set themselves: vSGD, complete and exact."""

__version__ = "0.1.0"
