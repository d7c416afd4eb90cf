"""Which samples a cleaned list leaves out and a loader should skip: those with a critical fault, and the later of two equals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from holdfast.data.formats.detect import is_image_format, list_data, open_images
from holdfast.data.problem import Problem
from holdfast.data.report import Report
from holdfast.data.samples import Entry, ImageSet
from holdfast.data.validate import Settings

_ALSO = frozenset({"split-leak", "duplicate-sample", "duplicate-row", "label-missing"})
_NOT_OF_A_SAMPLE = frozenset({"class-unused", "one-class", "path-outside", "image-missing", "split-missing", "dtype-overflow"})


def leaves_out(problem: Problem) -> bool:
    """Whether the samples of a problem are left out."""
    return problem.code in _ALSO or (problem.severity == "critical" and problem.code not in _NOT_OF_A_SAMPLE)


def image_set(path: str, settings: Settings, format: str) -> ImageSet | None:
    """The set that a report is about, opened once more; None where it is none of images."""
    if not is_image_format(format):
        return None
    listing, named = list_data(Path(path), settings.also)
    return open_images(listing, named, format)


def bad_entries(report: Report, data: ImageSet) -> list[Entry]:
    """The samples with something critical in their image, label or masks. A leak counts in its later split only."""
    files = {file for problem in report.problems if leaves_out(problem) for file in problem.files}
    later = {file for problem in report.problems if problem.code == "split-leak" for file in problem.files}
    others = files - later
    listed = Counter(entry.image for entry in data.entries)
    first: set[str] = set()
    found = []
    for entry in data.entries:
        parts = {entry.image, *entry.masks, *([entry.own_label] if entry.own_label else [])}
        again = entry.image in first  # named by two splits: stays in the first
        if again or parts & others or (entry.image in later and listed[entry.image] == 1):
            found.append(entry)
        first.add(entry.image)
    return found


def bad_rows(report: Report) -> dict[str, list[int]]:
    """Rows of tables, arrays and trees that are to be skipped, by file, counted from 0."""
    rows: dict[str, set[int]] = {}
    for problem in report.problems:
        for file, some in problem.numbers.get("in_files", {}).items() if leaves_out(problem) else ():
            rows.setdefault(file, set()).update(some)
    return {file: sorted(some) for file, some in rows.items()}
