"""Statistics of image data: all samples go by once, in bounded memory."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from holdfast.data.cache import Cache
from holdfast.data.formats.splits import order_of
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, ImageSet
from holdfast.data.scan import Progress, looked_at
from holdfast.data.stats.boxes import BoxCounts
from holdfast.data.stats.classes import ClassCounts
from holdfast.data.stats.figures import Bars, Figure
from holdfast.data.stats.mask_figures import FolderOfMasks
from holdfast.data.stats.measure import Measured, Measuring
from holdfast.data.stats.pixel_counts import Channel, joined, pixel_histogram
from holdfast.data.stats.report import Statistics
from holdfast.data.stats.values import Values
from holdfast.errors import UsageError

_SIZES = 200  # different sizes that are listed


def image_statistics(
    path: str, data: ImageSet, cache: Cache, *, only: frozenset[str], pixels: bool, processes: int, progress: Progress | None
) -> Statistics:
    """Measure every image, and count."""
    if not data.entries and not data.faults:
        raise UsageError(f"{path} holds no image", fix="name the folder above the images, or another --format")
    counts = ImageCounts(data, only)
    how = Measuring(root=data.root, read_label=data.read_label, pixels=pixels)
    with contextlib.closing(looked_at(data, cache, how, processes, progress)) as samples:  # Ctrl-C closes it, and it keeps
        for entry, measured in samples:
            counts.add(entry, measured)
    counts.check_names(path)
    report = Statistics(path=path, format=data.format, splits=counts.splits, classes=sorted(only))
    report.add_faults([*data.faults, *counts.faults])
    report.figures = list(counts.figures())
    if not pixels:
        report.notes.append("--pixels decodes the images as well: values of the channels, their means and deviations")
    return report


class ImageCounts:
    """Takes one sample after the other. With `only`, other classes are left out, and images that hold none of these."""

    def __init__(self, data: ImageSet, only: frozenset[str]) -> None:
        self._data = data
        self._only = only
        self._classes = ClassCounts(data.classes, "objects" if data.has_boxes else "images")
        self._met: set[str] = {str(name) for name in data.classes.values()}
        self._splits: Counter[str] = Counter()
        self._boxes = BoxCounts()
        self._objects = Values()
        self._sizes: dict[str, Counter[tuple[int, int]]] = {}
        self._channels: dict[str, Counter[int]] = {}
        self._pixels: dict[tuple[str, int], dict[str, Channel]] = {}
        self._masks: dict[str, FolderOfMasks] = {}
        self.faults: list[Fault] = []

    def add(self, entry: Entry, seen: Measured) -> None:
        """One sample."""
        self.faults += seen.faults
        kinds, boxes = self._wanted(entry, seen)
        if self._only and not kinds:
            return
        self._splits[entry.split] += 1
        self._classes.add(entry.split, kinds)
        if self._data.has_boxes:
            self._objects.add(entry.split, len(kinds))
            self._boxes.add(entry.split, kinds, boxes, seen.width, seen.height)
        if seen.width and seen.height:
            self._sizes.setdefault(entry.split, Counter())[seen.width, seen.height] += 1
            self._channels.setdefault(entry.split, Counter())[seen.channels] += 1
        for channel in seen.pixels:
            _join(self._pixels.setdefault((channel.name, channel.top), {}), entry.split, channel)
        for folder in dict.fromkeys(mask.folder for mask in seen.masks):
            masks = [mask for mask in seen.masks if mask.folder == folder]
            self._masks.setdefault(folder, FolderOfMasks(folder, self._data.classes)).add(entry.split, masks)

    def _wanted(self, entry: Entry, seen: Measured) -> tuple[list[ClassKey], list[float]]:
        """Classes of the sample's objects, or its own; with their boxes."""
        kinds = list(seen.kinds) if entry.class_id is None else [entry.class_id]
        self._met.update(map(self._classes.name_of, kinds))
        if not self._only:
            return kinds, list(seen.boxes)
        places = [place for place, kind in enumerate(kinds) if self._classes.name_of(kind) in self._only]
        boxes = [value for place in places for value in seen.boxes[4 * place : 4 * place + 4]]
        return [kinds[place] for place in places], boxes

    def check_names(self, path: str) -> None:
        """Say so where a class was asked for that is not there."""
        missing = sorted(self._only - self._met)
        if missing:
            there = ", ".join(sorted(self._met)[:20]) or "none"
            raise UsageError(f"{path} has no class {missing[0]}", fix=f"one of: {there}")

    @property
    def splits(self) -> dict[str, int]:
        """Images of each split, in the order of the set."""
        return {split: self._splits[split] for split in self._data.splits if self._splits[split] or not self._only}

    def figures(self) -> Iterator[Figure]:
        """All of them, the most important first."""
        of_classes = list(self._classes.figures(self._only, self._boxes.medians())) if self._data.format != "masks" else []
        yield from of_classes[:1]
        if self._data.has_boxes:
            empty = sum(some[0] for some in self._objects.by_split.values())
            note = f"{empty:,} {'image' if empty == 1 else 'images'} without any" if empty else ""
            made = self._objects.histogram("objects-per-image", "objects per image", "", note)
            yield from [made] if made else []
            yield from self._boxes.figures()
        yield from of_classes[1:]
        told: list[FolderOfMasks] = []
        for _, folder in sorted(self._masks.items()):
            yield from folder.figures(alone=not any(folder.covers_like(one) for one in told))
            told.append(folder)
        yield from self._image_sizes()
        for (name, top), splits in self._pixels.items():
            yield pixel_histogram(name, top, splits)

    def _image_sizes(self) -> Iterator[Figure]:
        total: Counter[tuple[int, int]] = sum(self._sizes.values(), Counter())
        if not total:
            return
        splits = sorted(self._sizes, key=order_of)
        counts = {f"{w} × {h}": {one: self._sizes[one][w, h] for one in splits} for (w, h), _ in total.most_common(_SIZES)}
        rest = total.most_common()[_SIZES:]
        yield Bars(
            key="image-sizes", title="image sizes", unit="images", counts=counts, others=len(rest),
            of_others=sum(count for _, count in rest),
        )  # fmt: skip
        for place, word in enumerate(("width", "height")):
            values = Values(growing=max(size[place] for size in total) > 4 * min(size[place] for size in total))
            for split in splits:
                for size, count in self._sizes[split].items():
                    values.add(split, size[place], count)
            made = values.histogram(f"image-{word}", f"image {word}, px", "") if len(total) > 1 else None
            yield from [made] if made else []
        depths = sorted({depth for some in self._channels.values() for depth in some})
        counts = {_depth(depth): {split: self._channels[split][depth] for split in splits} for depth in depths}
        yield Bars(key="channels", title="channels", unit="images", counts=counts)


def _depth(channels: int) -> str:
    return {1: "1 (grey)", 3: "3 (colour)", 4: "4 (colour, alpha)"}.get(channels, str(channels))


def _join(splits: dict[str, Channel], split: str, more: Channel) -> None:
    old = splits.get(split)
    if old is None:
        splits[split] = more
        return
    splits[split] = joined(old, more)
