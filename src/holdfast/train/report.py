"""What a training leaves for people: `metrics.csv`, a row for each epoch, and `report.html`, one file that needs nothing else."""

from __future__ import annotations

import base64
import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.diagnosis.plot import Mark, plot, plot_scripts
from holdfast.drawing.pages import rendered
from holdfast.probe.journal import Event, Folding
from holdfast.probe.words import action_words, finding_words
from holdfast.signals.curves import Curve
from holdfast.signals.metric_direction import better
from holdfast.signals.run_folder import RunFolder, replace_text
from holdfast.units import duration, number

if TYPE_CHECKING:
    from PIL import Image

Row = dict[str, Any]
_WHOLE = ("epoch", "step")
_NOT_METRICS = (*_WHOLE, "lr", "seconds")
_IN_ONE_PLOT = 5
_MOST_MARKS = 12


class MetricsTable:
    """The rows of `metrics.csv`. A disk that refuses them is reported once; they are kept, and written with the next row."""

    def __init__(self, path: Path, *, writes: bool = True, earlier: Path | None = None, until_epoch: int = 0) -> None:
        """`earlier` is the table of the run that is resumed; its rows up to `until_epoch` are taken over."""
        self.path, self.rows = path, [row for row in _read_rows(earlier) if row["epoch"] <= until_epoch]
        self._writes, self._warned = writes, False

    def add(self, row: Mapping[str, float]) -> None:
        """Add an epoch. Rows of the same or a later epoch are dropped: they are done again."""
        self.rows = [earlier for earlier in self.rows if earlier["epoch"] < row["epoch"]] + [dict(row)]
        if self._writes and not _written(self.path, self._text(), warn=not self._warned):
            self._warned = True

    def best(self, metric: str) -> Row | None:
        """The row with the best finite value of a metric; of equal ones the first."""
        measured = [row for row in self.rows if math.isfinite(row.get(metric, math.nan))]
        sign = 1 if better(metric) == "lower" else -1
        return min(measured, key=lambda row: sign * row[metric], default=None)

    def _text(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows({name: f"{value:.9g}" for name, value in row.items()} for row in self.rows)
        return text.getvalue()


def _read_rows(path: Path | None) -> list[Row]:
    """The rows of an earlier table; damaged rows are skipped."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path is not None else []
    except OSError:
        return []
    rows = []
    for cells in csv.DictReader(lines):
        try:
            row = {name: int(value) if name in _WHOLE else float(value) for name, value in cells.items() if value}
        except (TypeError, ValueError):
            continue
        rows += [row] if "epoch" in row else []
    return rows


def _written(path: Path, text: str, *, warn: bool = True) -> bool:
    """Write a file in one move. A training does not end because this fails."""
    try:
        replace_text(path, text)
    except OSError as error:
        if warn:
            print(f"holdfast: {path} could not be written ({error.strerror}); training continues", file=sys.stderr, flush=True)
        return False
    return True


# What a task gives to the report: by title, a drawing (SVG), a `Table`, or a list of `Picture`.


@dataclass(frozen=True, slots=True)
class Picture:
    """An image with the words under it."""

    image: Image.Image
    caption: str

    @property
    def inlined(self) -> str:
        """The image as a page holds it."""
        data = io.BytesIO()
        self.image.convert("RGB").save(data, "JPEG", quality=88, subsampling=0)
        return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of words and numbers under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | float]]


def write_report(
    folder: Path,
    settings: Mapping[str, Any],
    table: MetricsTable,
    metrics: Mapping[str, float],
    shown: Mapping[str, Any],
    *,
    metric: str = "",
) -> None:
    """Write `report.html` of a run. `metrics` are those of the best weights; `metric` chose them, without it the first one."""
    metric = metric or next(iter(metrics), "")
    best = table.best(metric)
    events = [event for event in Folding(RunFolder(folder).journal).events if event.kind in ("finding", "action")]
    notes = [{"step": event.step, "kind": event.severity or event.state, "words": _sentence(event)} for event in events]
    page = rendered(
        "training.html",
        title=folder.resolve().name,
        scripts=plot_scripts(),
        settings={name: value for name, value in settings.items() if value not in ("", None)},
        rows=table.rows,
        columns=list(dict.fromkeys(name for row in table.rows for name in row)),
        metric=metric,
        best=best,
        metrics=metrics,
        seconds=duration(sum(row.get("seconds", 0.0) for row in table.rows)),
        curves=_curves(table.rows, list(metrics), best, events),
        sections={title: (_kind(content), content) for title, content in shown.items()},
        events=notes,
        counts={kind: sum(note["kind"] == kind for note in notes) for kind in ("critical", "warning", "info")},
    )
    _written(folder / "report.html", page)


def standalone(drawing: str) -> str:
    """A drawing of a page as an SVG file of its own."""
    style = rendered("page.css") + "svg { background: var(--paper); }"
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return drawing.strip().replace("<svg ", head, 1).replace(">", f"><style>{style}</style>", 1)


def _number(value: object) -> str:
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _kind(content: object) -> str:
    return "table" if isinstance(content, Table) else "drawing" if isinstance(content, str) else "pictures"


def _curves(rows: Sequence[Row], metrics: Sequence[str], best: Row | None, events: Sequence[Event]) -> list[str]:
    """Losses, metrics and the learning rate over the epochs; findings are marked on the losses."""
    losses = [name for name in dict.fromkeys(("train_loss", *metrics)) if "loss" in name]
    overall = [name for name in metrics if "/" not in name and name not in losses]
    parts = np.array_split(overall, -(-len(overall) // _IN_ONE_PLOT) or 1)
    groups = [("loss", losses), *(("metric", part.tolist()) for part in parts)]
    groups += [("metric by class", [name for name in metrics if "/" in name]), ("learning rate", ["lr"])]
    marks = [Mark(best["epoch"], "best", "change")] if best is not None else []
    plots = []
    for title, names in groups:
        shown = [*marks, *_marks(rows, events)] if title == "loss" else marks
        plots.append(plot([_curve(rows, name) for name in names], shown, title=title, along="epoch"))
    return [drawn for drawn in plots if drawn]


def _curve(rows: Sequence[Row], name: str) -> Curve:
    values = [row.get(name, math.nan) for row in rows]
    return Curve(name, np.array([row["epoch"] for row in rows], np.int64), np.array(values, np.float64))


def _marks(rows: Sequence[Row], events: Sequence[Event]) -> list[Mark]:
    """The first findings, numbered as in the list below the curves, at the epoch in which their step was."""
    ends = [row["step"] for row in rows if "step" in row]
    marks = []
    for place, event in enumerate(events, 1):
        if ends and event.severity and event.step is not None:
            row = rows[min(int(np.searchsorted(ends, event.step)), len(rows) - 1)]
            marks.append(Mark(row["epoch"], str(place), event.severity))
    return marks[:_MOST_MARKS]


def _sentence(event: Event) -> str:
    """A finding with its numbers, or an action with its settings and its reason."""
    if event.kind == "finding":
        evidence = event.evidence
        sentence = evidence.get("say") or ", ".join(
            f"{name.replace('_', ' ')} {_number(evidence[name])}" for name in _plain(evidence)
        )
        return finding_words(event.code) + (f": {sentence}" if sentence else "")
    action = action_words(event.code)
    text = action.done if event.state == "done" else action.to_do
    text += "".join(more.format(_number(event.settings[name])) for name, more in action.more.items() if name in event.settings)
    because = event.row.get("because")
    return f"{text} ({finding_words(because)})" if because else text


def _plain(evidence: Mapping[str, Any]) -> list[str]:
    """The names of the first few values that fit into a line."""
    return [name for name, value in evidence.items() if isinstance(value, (int, float, str))][:_IN_ONE_PLOT]
