"""Each method's mark in the report's plots: a shape and a colour of its own, as in the other figures."""

import math
from collections.abc import Sequence

__all__ = ["mark", "shape"]

# Okabe and Ito's palette; the paper's three vSGD are black, grey and white, and turn with the page.
_COLOURS = {
    "vsgd-robust": "#D55E00",
    "sgd": "#0072B2",
    "adagrad": "#E69F00",
    "smd": "#009E73",
    "amari": "#CC79A7",
    "almeida": "#56B4E9",
}

Corner = tuple[float, float]


def _star(points: int, inner: float) -> list[Corner]:
    turns = [(number * math.pi / points, inner if number % 2 else 1.2) for number in range(2 * points)]
    return [(length * math.sin(angle), -length * math.cos(angle)) for angle, length in turns]


# Corners around the middle, at a size of 1; a method that is not here is a disc.
_CORNERS: dict[str, Sequence[Corner]] = {
    "vsgd-b": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "vsgd-g": [(0, -1.1), (1.05, 0.85), (-1.05, 0.85)],
    "sgd": _star(4, 0.4),
    "adagrad": [(0, -1.15), (0.9, 0), (0, 1.15), (-0.9, 0)],
    "smd": [(0, 1.1), (1.05, -0.85), (-1.05, -0.85)],
    "amari": [
        *((-0.38, -1.05), (0.38, -1.05), (0.38, -0.38), (1.05, -0.38), (1.05, 0.38), (0.38, 0.38)),
        *((0.38, 1.05), (-0.38, 1.05), (-0.38, 0.38), (-1.05, 0.38), (-1.05, -0.38), (-0.38, -0.38)),
    ],
    "almeida": _star(5, 0.5),
}


def shape(method: str, x: float, y: float, size: float) -> str:
    """Return a method's mark around a point."""
    fill = f'fill="{_COLOURS[method]}"' if method in _COLOURS else f'class="{method}"'
    corners = _CORNERS.get(method)
    if corners is None:
        return f'<circle {fill} cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
    places = " ".join(f"{x + size * right:.1f},{y + size * down:.1f}" for right, down in corners)
    return f'<polygon {fill} points="{places}"/>'


def mark(method: str) -> str:
    """Return a method's mark for the key beside the plots."""
    return f'<svg class="mark" viewBox="-10 -10 20 20" aria-hidden="true">{shape(method, 0, 0, 8)}</svg>'
