"""A small plot of some curves as SVG: lines, titled axes, a legend above them, and marks where something was found or changed."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.signals.curves import Curve

_WIDTH, _HEIGHT = 860, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 46, 46
_LEGEND_Y, _LABEL_Y, _LETTER = 14, 38, 6.6  # a letter of the legend is about so wide
_POINTS = 600
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280")
_LOG_RANGE = 100.0  # a positive curve that spans more is drawn on a logarithmic axis
_MOST_DECADES = 6


@dataclass(frozen=True, slots=True)
class Mark:
    """Something to show at a step: a number that the text refers to, or a setting that was changed (severity `change`)."""

    step: int
    label: str
    severity: str


def plot(curves: Sequence[Curve], marks: Sequence[Mark] = (), *, title: str = "", along: str = "step") -> str:
    """The curves over one axis of whole numbers, which `along` names; `title` says what the values are."""
    drawn = [curve for curve in curves if len(curve.finite()) > 1][: len(_COLOURS)]
    if not drawn:
        return ""
    axis = _Axis(drawn)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(", ".join(c.name for c in drawn))}">']
    parts += [*axis.lines(), *axis.titles(title or drawn[0].name, along)]
    parts += [f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{axis.points(curve)}"/>'
              for curve, colour in zip(drawn, _COLOURS, strict=False)]  # fmt: skip
    parts += [axis.mark(mark) for mark in marks]
    return "\n".join([*parts, *_legend(drawn), "</svg>"])


class _Axis:
    """From steps and values to places on the page."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        steps = np.concatenate([curve.steps for curve in curves])
        values = np.concatenate([curve.finite().values for curve in curves])
        self.first, self.last = int(steps.min()), max(int(steps.max()), int(steps.min()) + 1)
        low, high = float(values.min()), float(values.max())
        self.logarithmic = low > 0 and high > _LOG_RANGE * low
        self.low, self.high = (math.log10(low), math.log10(high)) if self.logarithmic else (low, high)
        if self.high <= self.low:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def x(self, step: float) -> float:
        return _LEFT + (step - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        at = math.log10(value) if self.logarithmic else value
        return _HEIGHT - _BOTTOM - (at - self.low) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM)

    def points(self, curve: Curve) -> str:
        """At most a few hundred points: of each stretch its lowest and its highest, so that no spike is lost."""
        finite = curve.finite()
        order = np.arange(len(finite))
        if len(finite) > _POINTS:
            stretches = np.array_split(order, _POINTS // 2)
            picked = [{int(s[np.argmin(finite.values[s])]), int(s[np.argmax(finite.values[s])])} for s in stretches]
            order = np.array(sorted(set().union(*picked)))
        return " ".join(f"{self.x(finite.steps[n]):.1f},{self.y(finite.values[n]):.1f}" for n in order)

    def lines(self) -> list[str]:
        """Lines across with their values, and three steps below."""
        lines = []
        for value in self._ticks():
            y = self.y(value)
            lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            lines.append(f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        for step in (self.first, (self.first + self.last) // 2, self.last):
            anchor = "start" if step == self.first else "end" if step == self.last else "middle"
            place = f'x="{self.x(step):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="{anchor}"'
            lines.append(f'<text class="axis" {place}>{step:,}</text>')
        return lines

    def titles(self, title: str, along: str) -> list[str]:
        """What the axes are."""
        middle, side = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
        shown = f"{title} (log scale)" if self.logarithmic else title
        return [
            f'<text class="axis" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{_text(along)}</text>',
            f'<text class="axis" transform="translate(14 {side}) rotate(-90)" text-anchor="middle">{_text(shown)}</text>',
        ]

    def mark(self, mark: Mark) -> str:
        x = self.x(min(max(mark.step, self.first), self.last))
        line = f'<line class="mark {mark.severity}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{_HEIGHT - _BOTTOM}"/>'
        half = len(mark.label) * _LETTER / 2
        place = min(max(x, _LEFT + half), _WIDTH - _RIGHT - half)
        where = f'x="{place:.1f}" y="{_LABEL_Y}" text-anchor="middle"'
        return f'{line}<text class="label {mark.severity}" {where}>{_text(mark.label)}</text>'

    def _ticks(self) -> list[float]:
        """Powers of ten on a logarithmic axis, else round values."""
        if self.logarithmic:
            decades = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            return [10.0**decade for decade in decades[:: -(-len(decades) // _MOST_DECADES)]]
        step = _round_step((self.high - self.low) / 4)
        first = math.ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _round_step(about: float) -> float:
    """1, 2 or 5 times a power of ten, and not smaller."""
    unit = 10.0 ** math.floor(math.log10(about))
    return next(unit * times for times in (1, 2, 5, 10) if unit * times >= about * (1 - 1e-9))


def _legend(curves: Sequence[Curve]) -> list[str]:
    """The names beside each other above the curves."""
    parts, x = [], float(_LEFT)
    for curve, colour in zip(curves, _COLOURS, strict=False):
        shown = curve.name if len(curve.name) <= 40 else f"{curve.name[:39]}…"
        parts.append(f'<rect x="{x:.0f}" y="{_LEGEND_Y - 6}" width="16" height="3" fill="{colour}"/>')
        parts.append(f'<text class="legend" x="{x + 21:.0f}" y="{_LEGEND_Y}" fill="{colour}">{_text(shown)}</text>')
        x += 40 + _LETTER * len(shown)
    return parts


def _text(words: str) -> str:
    return html.escape(words, quote=True)
