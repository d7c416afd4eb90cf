"""A small plot of some curves as SVG: lines, an axis on either side, and marks where something was found."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.signals.curves import Curve

_WIDTH, _HEIGHT = 860, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 30
_POINTS = 600
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280")
_LOG_RANGE = 100.0  # a positive curve that spans more is drawn on a logarithmic axis


@dataclass(frozen=True, slots=True)
class Mark:
    """Something to show at a step: a number that the text refers to."""

    step: int
    label: str
    severity: str


def plot(curves: Sequence[Curve], marks: Sequence[Mark] = ()) -> str:
    """The curves over one axis of steps, each with its name in the legend."""
    drawn = [curve for curve in curves if len(curve.finite()) > 1]
    if not drawn:
        return ""
    axis = _Axis(drawn)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(", ".join(c.name for c in drawn))}">']
    parts += axis.lines()
    parts += [f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{axis.points(curve)}"/>'
              for curve, colour in zip(drawn, _COLOURS, strict=False)]  # fmt: skip
    parts += [axis.mark(mark) for mark in marks]
    parts += [_legend(place, curve.name) for place, curve in enumerate(drawn[: len(_COLOURS)])]
    return "\n".join([*parts, "</svg>"])


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
        known = curve.finite()
        order = np.arange(len(known))
        if len(known) > _POINTS:
            stretches = np.array_split(order, _POINTS // 2)
            picked = [{int(s[np.argmin(known.values[s])]), int(s[np.argmax(known.values[s])])} for s in stretches]
            order = np.array(sorted(set().union(*picked)))
        return " ".join(f"{self.x(known.steps[n]):.1f},{self.y(known.values[n]):.1f}" for n in order)

    def lines(self) -> list[str]:
        """Four lines across with their values, and three steps below."""
        found = []
        for share in (0.0, 1 / 3, 2 / 3, 1.0):
            at = self.low + share * (self.high - self.low)
            value = 10**at if self.logarithmic else at
            y = self.y(value)
            found.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            found.append(f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
        for step in (self.first, (self.first + self.last) // 2, self.last):
            anchor = "start" if step == self.first else "end" if step == self.last else "middle"
            place = f'x="{self.x(step):.1f}" y="{_HEIGHT - 10}" text-anchor="{anchor}"'
            found.append(f'<text class="axis" {place}>{step:,}</text>')
        return found

    def mark(self, mark: Mark) -> str:
        x = self.x(min(max(mark.step, self.first), self.last))
        line = f'<line class="mark {mark.severity}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        label = f'<text class="label {mark.severity}" x="{x:.1f}" y="{_TOP + 2}" text-anchor="middle">{_text(mark.label)}</text>'
        return line + label


def _legend(place: int, name: str) -> str:
    y = _TOP + 14 + 16 * place
    shown = name if len(name) <= 40 else f"{name[:39]}…"
    return (
        f'<text class="legend" x="{_WIDTH - _RIGHT - 6}" y="{y}" text-anchor="end" fill="{_COLOURS[place]}">{_text(shown)}</text>'
    )


def _text(words: str) -> str:
    return html.escape(words, quote=True)
