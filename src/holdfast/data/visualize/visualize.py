"""Draw samples of a data set: validate it, choose, and write one page that shows them all and needs nothing else."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.data.formats.detect import Settings, list_data, local_path, open_listed
from holdfast.data.formats.text import TextSet, as_rows
from holdfast.data.problem import Report
from holdfast.data.remote import is_remote
from holdfast.data.samples import ImageSet
from holdfast.data.scan import Progress
from holdfast.data.validate import PURPOSE, validate
from holdfast.data.visualize.image_samples import image_groups
from holdfast.data.visualize.pictures import Tile, words_instead
from holdfast.data.visualize.row_samples import DatasetSamples, RowSamples
from holdfast.data.visualize.sample import Group, Sample, Wish
from holdfast.drawing.pages import rendered
from holdfast.errors import StorageError, UsageError

_MADE_BY = "holdfast visualize"  # stands in every page: a file without it is somebody else's, and never written over
_HEAD = 2048


@dataclass(slots=True)
class Drawn:
    """What was drawn, and where."""

    report: Report
    page: Path
    groups: list[Group]
    wish: Wish
    notes: list[str] = field(default_factory=list)

    @property
    def samples(self) -> list[Sample]:
        """All of them, in the order of the page."""
        return [sample for group in self.groups for sample in group]

    @property
    def by_finding(self) -> dict[str, int]:
        """How many samples were drawn for each finding; those with several count for the first."""
        return dict(Counter(sample.marks[0].code for sample in self.samples if sample.marks))

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": self.report.path,
            "format": self.report.format,
            "samples": len(self.samples),
            "of": self.report.samples,
            "seed": self.wish.seed,
            "page": str(self.page),
            "drawn": [
                {
                    "name": sample.name, "split": sample.split, "classes": list(sample.classes),
                    "findings": [mark._asdict() for mark in sample.marks], "group": number,
                }
                for number, group in enumerate(self.groups, 1) for sample in group
            ],
            "notes": self.notes,
        }  # fmt: skip


def visualize(path: str, settings: Settings, wish: Wish, page: Path | None, looks: Callable[[], Progress] | None = None) -> Drawn:
    """Draw samples on a page. Validation and choice share a cache; where none is wanted, one that is thrown away.

    `looks` is asked for progress once for each look at the data: validation is the first, and what is chosen needs another.
    """
    data = _data_folder(str(local_path(path, settings)))
    to = page if page is not None else _usual_page(path, data)
    _refuse_place(to, data)
    with tempfile.TemporaryDirectory() as thrown_away:
        shared = settings if settings.cache is not None else dataclasses.replace(settings, cache=Path(thrown_away))
        report = validate(path, shared, looks() if looks else None)
        _refuse_unknown(wish, report)
        groups = _groups(path, shared, wish, report, looks() if looks else None)
    if not groups:
        raise UsageError(f"no sample of {path} fits", fix="drop --class or --finding, or choose another")
    codes = {mark.code for group in groups for sample in group for mark in sample.marks}
    notes = [
        f"{code} is about the set as a whole, not about single samples: a choice of all samples is shown"
        for code in wish.findings
        if code not in codes
    ]
    drawn = Drawn(report, to, groups, wish, [*notes, *report.notes])
    _write(drawn)
    return drawn


def _data_folder(path: str) -> Path | None:
    """The folder that is the data; none where that is one file, or code."""
    folder = Path(path)
    if folder.is_dir():
        return folder
    if folder.suffix.lower() in (".yaml", ".yml", ".json") and folder.exists():
        parent = folder.resolve().parent
        return parent.parent if parent.name.lower() == "annotations" else parent
    return None


def _usual_page(path: str, data: Path | None) -> Path:
    """`NAME-samples.html` here; beside the data where this place is inside of it."""
    here = Path.cwd()
    if data is not None and _is_within(here, data):
        here = data.resolve().parent
    if data is not None and not is_remote(path):
        name = data.resolve().name or "data"
    elif Path(path).exists():
        name = Path(path).stem
    else:
        name = "".join(letter if letter.isalnum() else "-" for letter in path)
    return here / f"{name}-samples.html"


def _refuse_place(page: Path, data: Path | None) -> None:
    """Never among the data, and never over a file that was not made here."""
    fix = "name another file: --output FILE"
    if data is not None and _is_within(page, data):
        raise UsageError(f"{page} is inside the data", fix=fix)
    if page.is_dir():
        raise UsageError(f"{page} is a folder", fix=fix)
    if page.is_symlink() or (page.exists() and _MADE_BY not in page.read_text(encoding="utf-8", errors="replace")[:_HEAD]):
        raise UsageError(f"{page} exists and was not written by {_MADE_BY}", fix=fix)


def _is_within(path: Path, folder: Path) -> bool:
    return path.resolve() == folder.resolve() or folder.resolve() in path.resolve().parents


def _refuse_unknown(wish: Wish, report: Report) -> None:
    codes = list(dict.fromkeys(problem.code for problem in report.problems))
    for code in wish.findings:
        if code not in codes:
            there = f"found were: {', '.join(codes)}" if codes else "nothing was found; drop --finding"
            raise UsageError(f"{code} was not found in {report.path}", fix=there)
    for name in wish.classes:
        if report.classes and name not in report.classes:
            raise UsageError(f"{report.path} has no class {name}", fix=f"one of: {', '.join(list(report.classes)[:20])}")


def _groups(path: str, settings: Settings, wish: Wish, report: Report, progress: Progress | None) -> list[Group]:
    if report.format == "dataset":
        return DatasetSamples(path, settings, report, wish).groups(progress)
    listing, named = list_data(path, settings)
    with settings.cache_of(listing, named, PURPOSE) as cache:
        data = open_listed(listing, named, dataclasses.replace(settings, format=report.format))
        if isinstance(data, ImageSet):
            return image_groups(data, cache, settings, wish, report, progress)
    table = as_rows(data) if isinstance(data, TextSet) else data
    return RowSamples(table, settings.label, report, wish).groups(progress)


def tile_of(sample: Sample) -> Tile:
    """What is seen of a sample; one that cannot be drawn does not cost the page."""
    try:
        return sample.draw()
    except Exception as error:  # noqa: BLE001 - the user's data set may raise anything
        return words_instead("cannot be drawn", f"{type(error).__name__}: {error}")


def _write(drawn: Drawn) -> None:
    """The page, whole or not at all."""
    report, samples = drawn.report, drawn.samples
    what = "lines" if report.format == "text" else "samples"
    total = f"{report.samples:,} {report.unit}"
    choices = {
        "finding": dict.fromkeys(mark.code for sample in samples for mark in sample.marks),
        "class": dict.fromkeys(name for sample in samples for name in sample.classes),
        "split": dict.fromkeys(sample.split for sample in samples if sample.split),
    }
    content = rendered(
        "samples.html", title=f"{report.path}: {report.format}", made_by=_MADE_BY, notes=drawn.notes, groups=drawn.groups,
        about=f"{len(samples):,} {what} of {total}, the suspicious ones first; seed {drawn.wish.seed}", tile_of=tile_of,
        picks={word: some for word, some in choices.items() if len(some) > 1 or (some and word == "finding")}, values=_values,
    )  # fmt: skip
    new = drawn.page.with_name(f".{drawn.page.name}.new")
    try:
        drawn.page.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(content, encoding="utf-8")
        new.replace(drawn.page)
    except OSError as error:
        raise StorageError(
            f"cannot write {drawn.page}: {error.strerror}", fix="name a place that can be written: --output FILE"
        ) from None


def _values(names: Iterable[str]) -> str:
    return json.dumps(list(dict.fromkeys(names)), ensure_ascii=False)


__all__ = ["Drawn", "visualize"]
