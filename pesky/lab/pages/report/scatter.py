"""Training against test error of all settings, as an SVG whose points can be asked."""

import math
from html import escape

from pesky.lab.benchmarks import METHOD_TITLES
from pesky.lab.pages.report.marks import shape
from pesky.lab.race.recorded import Recorded
from pesky.lab.race.tuning import Setting
from pesky.lab.runs.settings import settings_shown

__all__ = ["scatter"]

_WIDTH, _HEIGHT = 360, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 14, 40
_SMALL, _LARGE = 3.5, 7.5


def scatter(title: str, recorded: Recorded, unit: str) -> str:
    """Return the plot, logarithmic in both directions; every complete setting is in it."""
    settings = [one for one in recorded.settings if one.complete]
    winners = [one for one in map(recorded.winner, recorded.methods) if one is not None]
    x = _Axis([one.mean("train") for one in settings], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([one.mean("test") for one in settings], _HEIGHT - _BOTTOM, _TOP)
    small = [one for one in settings if one not in winners]
    points = [_point(one, x, y, unit, "point", _SMALL) for one in small]
    points += [
        _point(one, x, y, unit, "point winner", _LARGE) for one in reversed(winners)
    ]  # vSGD on top
    name = escape(title)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="group" aria-label="{name}: all settings">'
        + _frame(x, y, unit)
        + "".join(points)
        + f'<text x="{_LEFT + 6}" y="{_TOP + 10}" font-weight="bold">{name}</text></svg>'
    )


class _Axis:
    """A logarithmic axis from data to pixels; a value of zero is drawn at the smallest other one."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = math.log10(min(positive)), math.log10(max(positive))
        margin = 0.06 * (high - low) or 0.1
        self.low, self.high = low - margin, high + margin
        self.smallest = min(positive)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(max(value, self.smallest)) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        digits = (1, 2, 5) if self.high - self.low > 1 else (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        steps = [digit * 10.0**power for power in powers for digit in digits]
        inside = [value for value in steps if self.low <= math.log10(value) <= self.high]
        return inside[:: max(1, math.ceil(len(inside) / 6))]


def _frame(x: _Axis, y: _Axis, unit: str) -> str:
    parts = []
    for value in x.ticks():
        at = x(value)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        )
        parts.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">{value:g}</text>'
        )
    for value in y.ticks():
        at = y(value)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"training error, {escape(unit)}</text>"
    )
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text transform="translate(12 {height}) rotate(-90)" text-anchor="middle">'
        f"test error, {escape(unit)}</text>"
    )
    return "".join(parts)


def _point(one: Setting, x: _Axis, y: _Axis, unit: str, kind: str, size: float) -> str:
    train, test = one.mean("train"), one.mean("test")
    errors = f"train {train:.2f} {unit}, test {test:.2f} {unit}"
    title = METHOD_TITLES[one.method]
    tip = escape(f"{title}\n{settings_shown(one.settings)}\n{errors}", quote=True)
    drawn = shape(one.method, x(train), y(test), size)
    return f'<g class="{kind}" tabindex="0" data-tip="{tip}"><title>{tip}</title>{drawn}</g>'
