"""Draw samples of a data set: validate it, choose, draw sheet by sheet, and write a page that shows them all."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.formats.detect import is_image_format
from holdfast.data.report import Report
from holdfast.data.scan import Progress
from holdfast.data.validate import Settings, validate
from holdfast.data.visualize.dataset_samples import dataset_groups
from holdfast.data.visualize.folder import LIST, SheetFolder, default_folder, refuse_inside
from holdfast.data.visualize.image_samples import image_groups
from holdfast.data.visualize.page import page
from holdfast.data.visualize.row_samples import table_groups
from holdfast.data.visualize.sample import Group, Wish
from holdfast.data.visualize.sheet import Placed, rows_of, sheets
from holdfast.data.visualize.text_samples import text_groups
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

PAGE = "index.html"


@dataclass(slots=True)
class Drawn:
    """What was drawn, and where."""

    report: Report
    folder: Path
    sheets: list[str]
    placed: list[Placed]
    wish: Wish
    notes: list[str] = field(default_factory=list)

    @property
    def by_finding(self) -> dict[str, int]:
        """How many samples were drawn for each finding; those with several count for the first."""
        return dict(Counter(one.sample.marks[0].code for one in self.placed if one.sample.marks))

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": self.report.path,
            "format": self.report.format,
            "samples": len(self.placed),
            "of": self.report.samples,
            "seed": self.wish.seed,
            "folder": str(self.folder),
            "page": PAGE,
            "sheets": self.sheets,
            "drawn": [_row(one) for one in self.placed],
            "notes": self.notes,
        }


def _row(one: Placed) -> dict[str, Any]:
    sample = one.sample
    findings = [{"code": mark.code, "severity": mark.severity, "words": mark.words} for mark in sample.marks]
    return {
        "name": sample.name, "split": sample.split, "classes": list(sample.classes), "findings": findings,
        "sheet": one.sheet, "box": list(one.box), "group": one.group,
    }  # fmt: skip


def visualize(
    path: str, settings: Settings, wish: Wish, folder: Path | None, looks: Callable[[], Progress] | None = None
) -> Drawn:
    """Draw samples into a folder. Validation and choice share a cache; where none is wanted, one that is thrown away.

    `looks` is asked for progress once for each look at the data: validation is the first, and what is chosen needs another.
    """
    data = _data_folder(path)
    to = folder if folder is not None else default_folder(path, data)
    refuse_inside(to, data)
    target = SheetFolder(to)
    target.check([])
    with tempfile.TemporaryDirectory() as thrown_away:
        shared = settings if settings.cache is not None else dataclasses.replace(settings, cache=Path(thrown_away))
        report = validate(path, shared, looks() if looks else None)
        _refuse_unknown(wish, report)
        groups = _groups(path, shared, wish, report, looks() if looks else None)
    if not groups:
        raise UsageError(f"no sample of {path} fits", fix="leave out --class or --finding, or name another one")
    drawn = Drawn(report, to, [], [], wish, [*_notes(wish, groups), *report.notes])
    _write(drawn, groups, target)
    return drawn


def _data_folder(path: str) -> Path | None:
    """The folder that is the data; none where that is one file, or code."""
    found = Path(path)
    if found.is_dir():
        return found
    if found.suffix.lower() in (".yaml", ".yml", ".json") and found.exists():
        parent = found.resolve().parent
        return parent.parent if parent.name.lower() == "annotations" else parent
    return None


def _refuse_unknown(wish: Wish, report: Report) -> None:
    codes = list(dict.fromkeys(problem.code for problem in report.problems))
    for code in wish.findings:
        if code not in codes:
            there = f"found were: {', '.join(codes)}" if codes else "nothing was found; leave out --finding"
            raise UsageError(f"{code} was not found in {report.path}", fix=there)
    for name in wish.classes:
        if report.classes and name not in report.classes:
            raise UsageError(f"{report.path} has no class {name}", fix=f"one of: {', '.join(list(report.classes)[:20])}")


def _groups(path: str, settings: Settings, wish: Wish, report: Report, progress: Progress | None) -> list[Group]:
    if is_image_format(report.format):
        return image_groups(path, settings, wish, report, progress)
    if report.format == "text":
        return text_groups(path, settings, wish, report)
    if report.format == "dataset":
        return dataset_groups(path, settings, wish, report, progress)
    return table_groups(path, settings, wish, report, progress)


def _notes(wish: Wish, groups: list[Group]) -> list[str]:
    drawn = {mark.code for group in groups for sample in group for mark in sample.marks}
    return [
        f"{code} is about the set as a whole, not about single samples: a choice of all samples is shown"
        for code in wish.findings
        if code not in drawn
    ]


def _write(drawn: Drawn, groups: list[Group], target: SheetFolder) -> None:
    """Sheets one by one, then the page, then the list of both; nothing is written where anything must not be."""
    report = drawn.report
    rows = len(list(rows_of(groups)))
    target.check([*(_name(number) for number in range(1, rows + 1)), PAGE])
    total = f"{report.samples:,} {report.unit}"
    for image, placed in sheets(groups, f"{report.path}    {report.format}, {total}"):
        name = _name(len(drawn.sheets) + 1)
        target.write(name, _encoded(image))
        drawn.sheets.append(name)
        drawn.placed += placed
    what = "passages" if report.format == "text" else "samples"
    about = f"{len(drawn.placed):,} {what} of {total}, the suspicious ones first; seed {drawn.wish.seed}"
    target.write(PAGE, page(report, drawn.placed, drawn.sheets, drawn.notes, about).encode("utf-8", errors="replace"))
    target.finish({key: value for key, value in drawn.as_row().items() if key != "folder"})


def _name(number: int) -> str:
    return f"sheet-{number:03}.png"


def _encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=4)  # as small as with 6, in less than half of the time
    return buffer.getvalue()


__all__ = ["LIST", "PAGE", "Drawn", "visualize"]
