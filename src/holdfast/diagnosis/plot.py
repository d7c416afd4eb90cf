"""Plots in a page that is a file: drawn by the same scripts as those of `holdfast ui`, with their values inside the page."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.signals.curves import Curve
from holdfast.signals.thinning import thinned

STATIC = Path(__file__).parent / "static"
_POINTS, _MOST_CURVES = 600, 6
_TONES = {"critical": "bad", "warning": "warn"}


@dataclass(frozen=True, slots=True)
class Mark:
    """Something to show at a step: a number that the text refers to, or a setting that was changed (severity `change`)."""

    step: int
    label: str
    severity: str


def plot(curves: Sequence[Curve], marks: Sequence[Mark] = (), *, title: str = "", along: str = "step") -> str:
    """The curves over one axis of whole numbers, which `along` names; `title` says what the values are."""
    drawn = [curve for curve in curves if len(curve.finite()) > 1][:_MOST_CURVES]
    if not drawn:
        return ""
    lines = [{"name": curve.name, **thinned(curve.steps, curve.values, points=_POINTS)} for curve in drawn]
    kinds = ("change" if mark.severity == "change" else "finding" for mark in marks)
    shown = [{"x": mark.step, "label": mark.label, "kind": kind, "tone": _TONES.get(mark.severity, "info")}
             for mark, kind in zip(marks, kinds, strict=True)]  # fmt: skip
    values = {"title": title or drawn[0].name, "along": along, "lines": lines, "marks": shown}
    return f'<div class="holdfast-plot"><script type="application/json">{in_page(values)}</script></div>'


def plot_scripts() -> str:
    """What a page with plots holds once."""
    text = {path.name: path.read_text(encoding="utf-8") for path in STATIC.iterdir()}
    style = in_page(text["uplot.min.css"] + text["plots.css"])
    return f"<script>{in_script(text['uplot.min.js'])}\nglobalThis.HOLDFAST_STYLE = {style};</script>" + modules(
        {name: text[name] for name in ("base.js", "plots.js")}, text["embedded.js"]
    )


def modules(scripts: Mapping[str, str], main: str) -> str:
    """Scripts that import each other by name, and the one that runs, as a page holds them without a server."""
    found = {f"holdfast/{name}": data_link("text/javascript", _by_name(script)) for name, script in scripts.items()}
    return f'<script type="importmap">{json.dumps({"imports": found})}</script><script type="module">{_by_name(main)}</script>'


def in_page(values: Any) -> str:
    """Values as JSON inside a script of a page."""
    return json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")


def in_script(text: str) -> str:
    """A script that cannot end the element it is in."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


def data_link(kind: str, text: str) -> str:
    """A link that holds what it leads to."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def _by_name(script: str) -> str:
    return in_script(re.sub(r'from "\./(\w+\.js)"', r'from "holdfast/\1"', script))
