"""One run's page as a file that needs no server: the same scripts and styles, with the answers that they would ask for inside."""

from __future__ import annotations

import html
import re
from typing import Any

from holdfast.diagnosis.plot import data_link, in_page, modules
from holdfast.probe.values import for_json
from holdfast.signals.run_folder import RunFolder
from holdfast.web import tabs
from holdfast.web.curves import AXES
from holdfast.web.page import texts
from holdfast.web.runs import Runs, marks

_POINTS = 2000
_SCRIPTS = ("base.js", "plots.js", "tabs.js", "list.js", "run.js", "compare.js")


def exported(run: RunFolder) -> str:
    """The whole file."""
    text = texts()
    answers = in_page(for_json({"id": run.name, "answers": answers_of(run)}))
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(run.name)} · Holdfast</title>",
        f"<style>{text['uplot.min.css']}{text['plots.css']}{text['style.css']}</style>",
        f"<script>{text['theme.js']}</script><script>{text['uplot.min.js']}</script>",
        f"<script>globalThis.HOLDFAST = {answers};</script>",
        modules({name: text[name] for name in _SCRIPTS}, text["app.js"]),
    ]
    body = re.search(r"<body>.*</body>", text["index.html"], re.DOTALL)
    assert body is not None
    shown = re.sub(r'src="/static/icon.svg[^"]*"', f'src="{data_link("image/svg+xml", text["icon.svg"])}"', body[0])
    return f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head>\n{shown}</html>\n'


def answers_of(run: RunFolder) -> dict[str, Any]:
    """What the page of a run asks, by the words of the question."""
    runs = Runs(lambda: [run], ())
    watched = runs.find(run.name)
    curves, events = runs.curves(watched), watched.look().events
    answers: dict[str, Any] = {"run": {"row": watched.row(run.name), "marks": marks(events)}}
    for along in AXES:
        places = curves.positions_of([event.step for event in events], [event.time for event in events], along)
        answers[f"curves {along}"] = {**curves.answer(along=along, points=_POINTS), "marks": places}
    answers["tab diagnosis"] = tabs.diagnosis(run)
    for name, tab in tabs.TABS.items():
        answers[f"tab {name}"] = tab(watched)
    for what in tabs.GRIDS:
        answers[f"tab ranks {what}"] = tabs.ranks(watched, what)
    return answers
