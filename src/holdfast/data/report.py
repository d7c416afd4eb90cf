"""The report of validation as one HTML file that needs nothing else, with thumbnails of the images that are wrong."""

from __future__ import annotations

import base64
import io
import re

from holdfast.data.formats.detect import Settings, open_data
from holdfast.data.pages import rendered
from holdfast.data.problem import WORST_FIRST, Fault, Problem, Report, report_from
from holdfast.data.samples import Entry, ImageSet
from holdfast.data.visualize.image_drawing import ImageDrawing
from holdfast.errors import HoldfastError

_LISTED = 200
_SHOWN = 8  # thumbnails of a problem
_SIZE = (240, 180)
_LINE = re.compile(r"(.*?):(\d+): ")  # a case that names a line of a label
_BROKEN = frozenset({"image-unreadable", "image-truncated", "image-empty", "image-huge"})  # a decoder may crash or hang on them


def page(report: Report) -> str:
    """The whole file."""
    title = f"{report.path}: {report.format}"
    return rendered(
        "report.html", title=title, report=report, listed=_LISTED, severities=WORST_FIRST, thumbnails=_thumbnails(report)
    )


def _thumbnails(report: Report) -> list[list[tuple[str, str]]]:
    """For each problem the first images that show it, as name and data URL; none where the data is not images, or is gone."""
    try:
        data = open_data(report.path, Settings(format=report.format))
    except HoldfastError:
        data = None
    if not isinstance(data, ImageSet):
        return [[] for _ in report.problems]
    broken = {file for problem in report.problems if problem.code in _BROKEN for file in problem.files}
    shown: dict[str, Entry] = {}
    for entry in data.entries:
        for file in (entry.image, entry.own_label, *entry.masks):
            if file and entry.image not in broken:
                shown.setdefault(file, entry)
    drawing = ImageDrawing(data, {key: place for place, key in enumerate({**data.classes, **report.classes})}, {})
    return [_of_problem(drawing, problem, shown) for problem in report.problems]


def _of_problem(drawing: ImageDrawing, problem: Problem, shown: dict[str, Entry]) -> list[tuple[str, str]]:
    pairs = [file for pair in problem.numbers.get("pairs", ())[: _SHOWN // 2] for file in pair]
    entries = list(dict.fromkeys(shown[file] for file in pairs or problem.files[: 10 * _SHOWN] if file in shown))
    lines: dict[str, list[Fault]] = {}  # of labels, by file: what is wrong there is drawn in red
    for file, line in (match.groups() for case in problem.cases[: 100 * _SHOWN] if (match := _LINE.match(case))):
        lines.setdefault(file, []).append(Fault(problem.code, file, int(line), ""))
    shown_entries = [(entry, tuple(lines.get(entry.own_label or entry.image, ()))) for entry in entries[:_SHOWN]]
    return [(entry.image, _data_url(drawing, entry, faults)) for entry, faults in shown_entries]


def _data_url(drawing: ImageDrawing, entry: Entry, faults: tuple[Fault, ...]) -> str:
    buffer = io.BytesIO()
    drawing.draw(entry, faults, _SIZE).convert("RGB").save(buffer, "JPEG", quality=70)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


__all__ = ["Report", "page", "report_from"]
