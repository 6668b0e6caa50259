"""How every figure looks and how it is saved."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pesky.files import atomic_path

if TYPE_CHECKING:  # Matplotlib takes long to import, and no command but those that draw needs it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "GREEN",
    "METHOD_STYLES",
    "ORANGE",
    "PLAIN_BOX",
    "PURPLE",
    "Picture",
    "legend_above",
    "line_style",
    "new_figure",
    "tidy",
]

_SETTINGS: Any = {
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.which": "major",
    "grid.color": "0.9",
    "savefig.dpi": 160,
    "svg.hashsalt": "pesky",  # the same picture gives the same bytes
}

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, SKY, GREEN, ORANGE, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7"

PLAIN_BOX: Any = {"facecolor": "white", "edgecolor": "none", "pad": 2}  # keeps text off the lines

# Dashes and widths tell the lines apart in grey too.
_STYLES: dict[str, dict[str, Any]] = {
    "vSGD-l": {"color": ORANGE, "linewidth": 2.6, "zorder": 4},
    "oracle-l": {"color": "black", "linestyle": (0, (4, 2)), "zorder": 3},
    "SGD 1": {"color": BLUE},
    "SGD 0.2": {"color": SKY, "linestyle": (0, (6, 1.5))},
    "SGD 1/t": {"color": GREEN, "linestyle": (0, (5, 1, 1, 1))},
    "SGD 0.2/t": {"color": PURPLE, "linestyle": (0, (1.5, 1))},
}


# Of the race: vSGD in black, rivals each in a colour, all with a marker of their own.
METHOD_STYLES: dict[str, dict[str, Any]] = {
    "vsgd-l": {"color": "black", "marker": "o"},
    "vsgd-b": {"color": "black", "marker": "s", "markerfacecolor": "0.6"},
    "vsgd-g": {"color": "black", "marker": "^", "markerfacecolor": "white"},
    "vsgd-robust": {"color": "#D55E00", "marker": "o"},
    "sgd": {"color": "#0072B2", "marker": "x"},
    "adagrad": {"color": "#E69F00", "marker": "D"},
    "smd": {"color": "#009E73", "marker": "v"},
    "amari": {"color": "#CC79A7", "marker": "P"},
    "almeida": {"color": "#56B4E9", "marker": "*"},
}


@dataclass(frozen=True)
class Picture:
    """A figure and the numbers that matter in it."""

    name: str
    figure: "Figure"
    numbers: dict[str, Any]

    def save(self, folder: Path) -> list[Path]:
        """Write PNG and SVG into `folder`; return their paths."""
        paths = [folder / f"{self.name}.{kind}" for kind in ("png", "svg")]
        for path in paths:
            with atomic_path(path) as temporary:
                self._write(temporary, path.suffix.removeprefix("."))
        return paths

    def svg(self) -> bytes:
        """Return it as SVG."""
        content = BytesIO()
        self._write(content, "svg")
        return content.getvalue()

    def _write(self, target: Path | BytesIO, kind: str) -> None:
        import matplotlib as mpl

        with mpl.rc_context(_SETTINGS):
            self.figure.savefig(target, format=kind, metadata={"Date": None} if kind == "svg" else None)


def new_figure(width: float, height: float, **subplots: Any) -> "tuple[Figure, Any]":
    """Return a figure in the house style and its axes; `subplots` as for `Figure.subplots`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(**subplots)


def line_style(name: str) -> dict[str, Any]:
    """Return a method's keyword arguments for `Axes.plot`."""
    return {"label": name, **_STYLES.get(name, {})}


def legend_above(figure: "Figure", axes: "Axes", columns: int) -> None:
    """Put the legend above all axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def tidy(axes: "Axes", *, x: str, y: str) -> None:
    """Name the axes."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
