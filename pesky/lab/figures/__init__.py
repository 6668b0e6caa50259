"""The paper's figures, one module each: ``make(...)`` computes, draws and returns a `Picture`."""

from pesky.lab.figures.picture import Picture

__all__ = ["Picture"]
