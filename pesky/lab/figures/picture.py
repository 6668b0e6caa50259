"""How every figure looks and how it is saved."""

import pickle
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import fill
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
    "picture_files",
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

_NARROW, _PANEL = 5.0, 4.0  # inches: the width of a narrow picture, and the height of a panel there
_LINE = 64  # small letters that it has room for in a line

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
        """Write PNG, SVG and the narrow SVG into `folder`; return their paths."""
        contents = (_content(self.figure, "png"), self.svg(), self.narrow_svg())
        paths = [folder / name for name in picture_files(self.name)]
        for path, content in zip(paths, contents, strict=True):
            with atomic_path(path) as temporary:
                temporary.write_bytes(content)
        return paths

    def svg(self) -> bytes:
        """Return it as SVG."""
        return _content(self.figure, "svg")

    def narrow_svg(self) -> bytes:
        """Return it as SVG for a phone: its panels stand below each other."""
        return _content(_narrow(self.figure), "svg")


def picture_files(name: str) -> tuple[str, str, str]:
    """Return the names of a picture's files: PNG, SVG and narrow SVG."""
    return f"{name}.png", f"{name}.svg", f"{name}-narrow.svg"


def _content(figure: "Figure", kind: str) -> bytes:
    import matplotlib as mpl

    content = BytesIO()
    with mpl.rc_context(_SETTINGS):
        figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return content.getvalue()


def _narrow(figure: "Figure") -> "Figure":
    """Return a copy of a figure as wide as a phone shows well."""
    copied: Figure = pickle.loads(pickle.dumps(figure))
    panels = [axes for axes in copied.axes if axes.get_visible()]
    specs = [spec for axes in panels if (spec := axes.get_subplotspec()) is not None]
    if max(spec.get_gridspec().ncols for spec in specs) > 1:
        _stack(copied, panels)
    else:
        copied.set_size_inches(_NARROW, max(_PANEL, 0.8 * figure.get_figheight()))
    for text in copied.texts:
        text.set_text("\n".join(fill(line, _LINE) for line in text.get_text().splitlines()))
    for legend in copied.legends:
        legend.remove()
        named = max(panels, key=lambda axes: len(_labels(axes)))
        longest = max(map(len, _labels(named)))
        legend_above(copied, named, columns=2 if 2 * longest <= _LINE - 12 else 1)  # 12: room for marks
    return copied


def _stack(figure: "Figure", panels: "list[Axes]") -> None:
    """Put all panels of a figure into one column, each with its own labels."""
    for axes in figure.axes:
        if axes not in panels:
            axes.remove()
    grid = figure.add_gridspec(len(panels), 1)
    for place, axes in enumerate(panels):
        axes.set_subplotspec(grid[place])
        axes.tick_params(labelbottom=True, labelleft=True)
        x, y = (
            axes.get_xlabel() or panels[-1].get_xlabel(),
            axes.get_ylabel() or panels[0].get_ylabel(),
        )
        tidy(axes, x=x, y=y)
    figure.set_size_inches(_NARROW, _PANEL * len(panels))


def _labels(axes: "Axes") -> list[str]:
    return [str(label) for label in axes.get_legend_handles_labels()[1]]


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
