"""Draw samples of a data set: validate it, choose, draw sheet by sheet, and write a page that shows them all."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.data.columns import TableSet
from holdfast.data.formats.detect import Settings, list_data, local_path, open_listed
from holdfast.data.problem import Report
from holdfast.data.remote import is_remote
from holdfast.data.samples import ImageSet
from holdfast.data.scan import Progress
from holdfast.data.validate import PURPOSE, validate
from holdfast.data.visualize.image_samples import image_groups
from holdfast.data.visualize.row_samples import DatasetSamples, RowSamples
from holdfast.data.visualize.sample import Group, Wish
from holdfast.data.visualize.sheet import Placed, page, rows_of, sheets
from holdfast.data.visualize.text_samples import TextSamples
from holdfast.errors import StorageError, UsageError

# Where sheets are written: never into the data, and never over a file that was not made here.
# `sheets.json` in the folder says which files were made and how they read; what does not read so any more is somebody else's.

LIST = "sheets.json"
_MADE_BY = "holdfast visualize"


def _sheet_folder(path: str, data: Path | None) -> Path:
    """`NAME-sheets` here; beside the data where this place is inside of it."""
    here = Path.cwd()
    if data is not None and _is_within(here, data):
        here = data.resolve().parent
    if data is not None and not is_remote(path):
        name = data.resolve().name or "data"
    elif Path(path).exists():
        name = Path(path).stem
    else:
        name = "".join(letter if letter.isalnum() else "-" for letter in path)
    return here / f"{name}-sheets"


def _is_within(path: Path, folder: Path) -> bool:
    return path.resolve() == folder.resolve() or folder.resolve() in path.resolve().parents


class SheetFolder:
    """The folder: what may be written is checked before anything is, and what was made before and is no longer is removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = _made_before(folder)
        self._made: dict[str, str] = {}

    def check(self, names: list[str]) -> None:
        """Refuse where a file of that name is there that was not made here, or was changed since."""
        for name in (*names, LIST):
            path = self.folder / name
            if path.is_symlink() or (
                path.exists() and not (name == LIST and self._before is not None) and not self._is_ours(name)
            ):
                raise UsageError(f"{path} is there and was not made by {_MADE_BY}", fix="name another folder: --output FOLDER")

    def _is_ours(self, name: str) -> bool:
        known = (self._before or {}).get(name)
        try:
            return known is not None and known == _digest((self.folder / name).read_bytes())
        except OSError:
            return False

    def write(self, name: str, content: bytes) -> None:
        """Write one file, whole or not at all."""
        path = self.folder / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{name}.new")
            new.write_bytes(content)
            new.replace(path)
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror}", fix="name a folder that can be written: --output FOLDER"
            ) from None
        self._made[name] = _digest(content)

    def finish(self, row: dict[str, Any]) -> None:
        """Write the list of what was made, and remove what an earlier run made and this one did not."""
        for name in self._before or {}:
            if name not in self._made and self._is_ours(name):
                (self.folder / name).unlink(missing_ok=True)
        content = {"made_by": _MADE_BY, "files": dict(sorted(self._made.items())), **row}
        self.write(LIST, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8", errors="replace"))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _made_before(folder: Path) -> dict[str, str] | None:
    """Names and digests of what an earlier run made; None where there was none."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder", fix="name a folder: --output FOLDER")
    try:
        content = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("made_by") != _MADE_BY or not isinstance(content.get("files"), dict):
        return None
    return {str(name): str(digest) for name, digest in content["files"].items() if Path(name).name == name}


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
            "drawn": [
                {
                    "name": sample.name, "split": sample.split, "classes": list(sample.classes),
                    "findings": [mark._asdict() for mark in sample.marks], "sheet": sheet, "box": list(box), "group": group,
                }
                for sample, sheet, box, group in self.placed
            ],
            "notes": self.notes,
        }  # fmt: skip


def visualize(
    path: str, settings: Settings, wish: Wish, folder: Path | None, looks: Callable[[], Progress] | None = None
) -> Drawn:
    """Draw samples into a folder. Validation and choice share a cache; where none is wanted, one that is thrown away.

    `looks` is asked for progress once for each look at the data: validation is the first, and what is chosen needs another.
    """
    data = _data_folder(str(local_path(path, settings)))
    to = folder if folder is not None else _sheet_folder(path, data)
    if data is not None and _is_within(to, data):  # sheets there would be samples the next time
        raise UsageError(f"{to} is inside the data", fix="name a folder elsewhere: --output FOLDER")
    target = SheetFolder(to)
    target.check([])
    with tempfile.TemporaryDirectory() as thrown_away:
        shared = settings if settings.cache is not None else dataclasses.replace(settings, cache=Path(thrown_away))
        report = validate(path, shared, looks() if looks else None)
        _refuse_unknown(wish, report)
        groups = _groups(path, shared, wish, report, looks() if looks else None)
    if not groups:
        raise UsageError(f"no sample of {path} fits", fix="leave out --class or --finding, or name another one")
    codes = {mark.code for group in groups for sample in group for mark in sample.marks}
    notes = [
        f"{code} is about the set as a whole, not about single samples: a choice of all samples is shown"
        for code in wish.findings
        if code not in codes
    ]
    drawn = Drawn(report, to, [], [], wish, [*notes, *report.notes])
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
    if report.format == "dataset":
        return DatasetSamples(path, settings, report, wish).groups(progress)
    listing, named = list_data(path, settings)
    with settings.cache_of(listing, named, PURPOSE) as cache:
        data = open_listed(listing, named, dataclasses.replace(settings, format=report.format))
        if isinstance(data, ImageSet):
            return image_groups(data, cache, settings, wish, report, progress)
    if isinstance(data, TableSet):
        return RowSamples(data, settings.label, report, wish).groups(progress)
    return TextSamples(data, report, wish).groups()


def _write(drawn: Drawn, groups: list[Group], target: SheetFolder) -> None:
    """Sheets one by one, then the page, then the list of both; nothing is written where anything must not be."""
    report = drawn.report
    rows = len(list(rows_of(groups)))
    target.check([*(f"sheet-{number:03}.png" for number in range(1, rows + 1)), PAGE])
    total = f"{report.samples:,} {report.unit}"
    for image, placed in sheets(groups, f"{report.path}    {report.format}, {total}"):
        name, buffer = f"sheet-{len(drawn.sheets) + 1:03}.png", io.BytesIO()
        image.save(buffer, "PNG", compress_level=4)  # as small as with 6, in less than half of the time
        target.write(name, buffer.getvalue())
        drawn.sheets.append(name)
        drawn.placed += placed
    what = "passages" if report.format == "text" else "samples"
    about = f"{len(drawn.placed):,} {what} of {total}, the suspicious ones first; seed {drawn.wish.seed}"
    target.write(PAGE, page(report, drawn.placed, drawn.sheets, drawn.notes, about).encode("utf-8", errors="replace"))
    target.finish({key: value for key, value in drawn.as_row().items() if key != "folder"})


__all__ = ["LIST", "PAGE", "Drawn", "visualize"]
