"""Cleaned lists beside the original, and lists of what loaders should skip. The data itself is never changed."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

from holdfast.data.formats.coco import ImagePaths
from holdfast.data.formats.detect import Settings, open_data
from holdfast.data.formats.yolo import settings_of
from holdfast.data.json_stream import JsonRow, json_rows
from holdfast.data.listing import stem
from holdfast.data.problem import Problem, Report
from holdfast.data.remote import is_remote
from holdfast.data.samples import Entry, ImageSet
from holdfast.errors import StorageError, UsageError

# Which samples a cleaned list leaves out and a loader should skip: those with a critical fault, and the later of two equals.

_ALSO = frozenset({"split-leak", "duplicate-sample", "duplicate-row", "label-missing"})
_NOT_OF_A_SAMPLE = frozenset({"class-unused", "one-class", "path-outside", "image-missing", "split-missing", "dtype-overflow"})


def leaves_out(problem: Problem) -> bool:
    """Whether the samples of a problem are left out."""
    return problem.code in _ALSO or (problem.severity == "critical" and problem.code not in _NOT_OF_A_SAMPLE)


def image_set(path: str, settings: Settings, format: str) -> ImageSet | None:
    """The set that a report is about, opened once more; None where it does not hold images."""
    data = open_data(path, dataclasses.replace(settings, format=format)) if format != "dataset" else None
    return data if isinstance(data, ImageSet) else None


def bad_entries(report: Report, data: ImageSet) -> list[Entry]:
    """The samples with something critical in their image, label or masks. A leak counts in its later split only."""
    files = {file for problem in report.problems if leaves_out(problem) for file in problem.files}
    later = {file for problem in report.problems if problem.code == "split-leak" for file in problem.files}
    others = files - later
    listed = Counter(entry.image for entry in data.entries)
    first: set[str] = set()
    bad = []
    for entry in data.entries:
        parts = {entry.image, *entry.masks, *([entry.own_label] if entry.own_label else [])}
        again = entry.image in first  # named by two splits: stays in the first
        if again or parts & others or (entry.image in later and listed[entry.image] == 1):
            bad.append(entry)
        first.add(entry.image)
    return bad


def bad_rows(report: Report) -> dict[str, list[int]]:
    """Rows of tables, arrays and trees that are to be skipped, by file, counted from 0."""
    rows: dict[str, set[int]] = {}
    for problem in report.problems:
        for file, some in problem.evidence.get("in_files", {}).items() if leaves_out(problem) else ():
            rows.setdefault(file, set()).update(some)
    return {file: sorted(some) for file, some in rows.items()}


_OF_KEYPOINTS = ("kpt_shape", "flip_idx", "kpt_names")  # without them the labels of a pose set cannot be read


def skip_list(report: Report, path: str, settings: Settings) -> list[str]:
    """What a loader should skip: paths of images relative to the set's folder, or `file:row` with rows counted from 0."""
    data = image_set(path, settings, report.format)
    if data is not None:
        return list(dict.fromkeys(entry.image for entry in bad_entries(report, data)))
    return [f"{file}:{row}" for file, rows in bad_rows(report).items() for row in rows]


def write_quarantine(report: Report, path: str, settings: Settings, to: Path) -> int:
    """Write the list of what to skip, one a line; how many there are."""
    lines = skip_list(report, path, settings)
    _write(to, (f"{line}\n" for line in lines))
    return len(lines)


def read_quarantine(path: str | Path) -> frozenset[str]:
    """The samples to skip, for a loader: paths of images, or `file:row`."""
    text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    return frozenset(line for line in text.splitlines() if line)


def write_cleaned(report: Report, path: str, settings: Settings, into: Path | None) -> Iterator[str]:
    """Write what is left when bad samples are left out; a line for each file that was written."""
    if is_remote(path) and into is None:
        raise UsageError(f"{path} is not on this machine", fix="name a folder for the cleaned list: --fix-into FOLDER")
    data = image_set(path, settings, report.format)
    if data is None:
        to = (into or (Path(path) if Path(path).is_dir() else Path(path).parent)) / "skip.txt"
        yield f"wrote {to}: {write_quarantine(report, path, settings, to):,} rows to skip, as --quarantine lists them"
        return
    gone = {(entry.split, entry.image) for entry in bad_entries(report, data)}
    kept = [entry for entry in data.entries if (entry.split, entry.image) not in gone]
    beside = into is None
    folder = into if into is not None else data.root
    if data.format == "coco":
        yield from _coco(data, gone, folder)
    else:
        yield from _lists(data, kept, folder, beside=beside)
    yield f"{len(kept):,} of {len(data.entries):,} samples are kept; the data itself is unchanged"


def _lists(data: ImageSet, kept: list[Entry], folder: Path, *, beside: bool) -> Iterator[str]:
    """One list per split, and for YOLO a data.yaml that names them."""
    names = {}
    main = folder / "ImageSets" / "Main"
    by_name = data.format == "voc" and main.is_dir()
    inner = main if by_name else folder
    for split in data.splits:
        images = [entry.image for entry in kept if entry.split == split]
        lines = [stem(image) if by_name else f"./{image}" if beside else (data.root / image).as_posix() for image in images]
        names[split] = f"{split}.cleaned.txt"
        _write(inner / names[split], (f"{line}\n" for line in lines))
        yield f"wrote {inner / names[split]}: {len(lines):,} samples"
    if data.format == "yolo":
        described = folder / "data.cleaned.yaml"
        _write(described, _data_yaml(data, names))
        yield f"wrote {described}"


def _data_yaml(data: ImageSet, names: dict[str, str]) -> str:
    import yaml

    before = settings_of(data.root / data.described_by) if data.described_by else {}
    kept = {key: before[key] for key in _OF_KEYPOINTS if key in before}
    settings: dict[str, object] = {**names, "nc": len(data.classes), "names": dict(data.classes), **kept}
    if "val" not in settings and "train" in settings:
        settings["val"] = names["train"]
    return str(yaml.safe_dump({"path": ".", **settings}, sort_keys=False, allow_unicode=True))


def _coco(data: ImageSet, gone: set[tuple[str, str]], folder: Path) -> Iterator[str]:
    """Each JSON file without the images that are left out, and without their annotations."""
    splits = {str(entry.label): entry.split for entry in data.entries}
    paths = ImagePaths(data.listing)
    for file, split in splits.items():
        beside = folder == data.root or sum(stem(other) == stem(file) for other in splits) > 1  # as train/a.json and val/a.json
        to = folder / (Path(file).with_suffix(".cleaned.json") if beside else f"{stem(file)}.cleaned.json")
        rows = (row for row in json_rows(data.root / file) if row.key == "images" and row.in_list)
        images = (
            (_id_of(row, "id"), paths.find(row.value.get("file_name"), split)) for row in rows if isinstance(row.value, dict)
        )
        kept = {number for number, path in images if number is not None and (split, path) not in gone}
        counts: Counter[str] = Counter()
        _write(to, _coco_text(data.root / file, kept, counts))
        yield f"wrote {to}: {counts['images']:,} images, {counts['annotations']:,} annotations"


def _id_of(row: JsonRow, key: str) -> int | float | str | None:
    """The id in a row of a JSON file; None where there is none that an image can have."""
    number = row.value.get(key) if isinstance(row.value, dict) else None
    return number if isinstance(number, (int, float, str)) else None


def _coco_text(path: Path, kept: Set[object], counts: Counter[str]) -> Iterator[str]:
    """The text of a JSON file with the rows of some images only; `counts` counts the rows that stay."""
    before, names = "{", {"images": "id", "annotations": "image_id"}
    for row in json_rows(path):
        if row.in_list and row.key in names and _id_of(row, names[row.key]) not in kept:
            continue
        comma = "," if row.in_list and counts[row.key] else ""
        counts[row.key] += row.in_list
        if row.in_list:
            yield comma + json.dumps(row.value)
            continue
        begins = isinstance(row.value, list)
        yield f"{before}{json.dumps(row.key)}: {'[' if begins else json.dumps(row.value)}"
        before = "], " if begins else ", "
    yield {"{": "{}", ", ": "}", "], ": "]}"}[before]


def _write(path: Path, pieces: Iterable[str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", errors="surrogateescape") as file:  # names that are not UTF-8 as they are
            file.writelines(pieces)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}", fix="name a folder that can be written: --fix-into FOLDER"
        ) from None
