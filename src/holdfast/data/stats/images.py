"""Statistics of image data: all samples go by once, in bounded memory."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import combinations

import numpy as np

from holdfast.data.cache import Cache
from holdfast.data.formats.detect import Settings
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.listing import order_of
from holdfast.data.problem import Fault
from holdfast.data.samples import Channel, ClassKey, Entry, Facts, ImageSet
from holdfast.data.scan import Progress, scan
from holdfast.data.stats.figures import Bars, Figure, Grid, Histogram, Values
from holdfast.data.stats.mask_figures import FolderOfMasks
from holdfast.data.stats.report import Statistics
from holdfast.errors import UsageError

# Boxes of a set: how large, of what shape, and where in the image.

SIDE = 32  # of the map
_ENOUGH = 10  # boxes for each of its fields
_SMALL, _LARGE = 32.0, 96.0  # pixels: COCO's limits
_AT_ONCE = 7 * 4096  # numbers that wait until they are counted


class BoxCounts:
    """Takes the boxes of one image after the other, and counts some thousands of them at once."""

    def __init__(self) -> None:
        self._sizes, self._areas, self._aspects = (Values(growing=True) for _ in range(3))
        self._map = np.zeros((SIDE, SIDE), dtype=np.int64)
        self._kinds = {"small": 0, "medium": 0, "large": 0}
        self._flat = 0
        self._waiting: dict[str, array[float]] = {}
        self._kinds_met: dict[ClassKey, int] = {}
        self._by_class: list[Values] = []

    def add(self, split: str, kinds: Sequence[ClassKey], boxes: Sequence[float], width: int, height: int) -> None:
        """Four shares of the image for each box; without a width and height its size in pixels is not known."""
        waiting = self._waiting.get(split)
        if waiting is None:
            waiting = self._waiting[split] = array("d")
        for place, kind in enumerate(kinds):
            waiting.extend((self._number_of(kind), *boxes[4 * place : 4 * place + 4], width, height))
        if len(waiting) >= _AT_ONCE:
            self._count(split)

    def _number_of(self, kind: ClassKey) -> int:
        if kind not in self._kinds_met:
            self._kinds_met[kind] = len(self._by_class)
            self._by_class.append(Values(growing=True))
        return self._kinds_met[kind]

    def _count(self, split: str) -> None:
        rows = np.array(self._waiting.pop(split)).reshape(-1, 7)
        kinds, x, y, across, down, width, height = rows[np.isfinite(rows).all(axis=1)].T
        fields = np.clip(np.stack([y, x]) * SIDE, 0, SIDE - 1).astype(np.int64)
        np.add.at(self._map, (fields[0], fields[1]), 1)
        good = (across > 0) & (down > 0)
        self._flat += int((~good).sum())
        self._areas.add_many(split, 100 * (across * down)[good])
        good &= (width > 0) & (height > 0)
        wide, high = (across * width)[good], (down * height)[good]
        sizes = np.sqrt(wide * high)
        self._sizes.add_many(split, sizes)
        self._aspects.add_many(split, wide / high)
        for kind in np.unique(kinds[good]):
            self._by_class[int(kind)].add_many(split, sizes[kinds[good] == kind])
        small, large = int((sizes < _SMALL).sum()), int((sizes >= _LARGE).sum())
        for kind, count in (("small", small), ("medium", len(sizes) - small - large), ("large", large)):
            self._kinds[kind] += count

    def medians(self) -> dict[ClassKey, int]:
        """The usual size of each class, in pixels."""
        for split in list(self._waiting):
            self._count(split)
        found = {kind: self._by_class[number].median() for kind, number in self._kinds_met.items()}
        return {kind: round(size) for kind, size in found.items() if size is not None}

    def figures(self) -> Iterator[Figure]:
        """All that there is to see."""
        for split in list(self._waiting):
            self._count(split)
        total = max(1, sum(self._kinds.values()))
        shares = ", ".join(f"{kind} {count / total:.0%}" for kind, count in self._kinds.items())
        note = f"{shares} (limits 32 and 96 pixels)"
        if self._flat:
            note += f"; {self._flat:,} without area are not in it"
        made = (
            self._sizes.histogram("box-size", "box size, px", "√(width × height)", note),
            self._areas.histogram("box-area", "box area, % of image", ""),
            self._aspects.histogram("box-aspect", "box width / height", ""),
        )
        yield from (one for one in made if one is not None)
        if self._map.any():
            values = self._map.astype(np.float64)
            if values.sum() < _ENOUGH * values.size:  # fewer fields, so that it is not all chance
                values = values.reshape(SIDE // 2, 2, SIDE // 2, 2).sum(axis=(1, 3))
            yield Grid(key="box-positions", title="box positions", unit="middles of boxes", shape="map", values=values.tolist())


# Counts of classes by split, in how many images each is, and which are seen together.

_TOGETHER = 40  # classes of the figure
_IN_ONE = 200  # classes of one image that are paired


class ClassCounts:
    """Takes the classes of one sample after the other; `unit` is what is counted: objects, images, rows."""

    def __init__(self, names: dict[ClassKey, str], unit: str) -> None:
        self._names = names
        self._unit = unit
        self._objects: dict[str, Counter[ClassKey]] = {}
        self._images: Counter[ClassKey] = Counter()
        self._pairs: Counter[tuple[ClassKey, ClassKey]] = Counter()

    def add(self, split: str, kinds: Iterable[ClassKey]) -> None:
        """The classes of all objects of one image."""
        counts = Counter(kinds)
        self._objects.setdefault(split, Counter()).update(counts)
        self._images.update(counts.keys())
        self._pairs.update(combinations(sorted(counts, key=str)[:_IN_ONE], 2))

    def name_of(self, kind: ClassKey) -> str:
        """The name of a class, or its number where it has none."""
        return str(self._names.get(kind, kind))

    def figures(self, only: frozenset[str], sizes: dict[ClassKey, int]) -> Iterator[Figure]:
        """Bars with the usual size of each class, and, where several classes share images, how often."""
        kinds = self._in_order(only)
        if not kinds:
            return
        splits = sorted(self._objects, key=order_of)
        counts = {self.name_of(kind): {split: self._objects[split][kind] for split in splits} for kind in kinds}
        objects = self._unit == "objects"
        columns = {"images": {self.name_of(kind): self._images[kind] for kind in kinds}} if objects else {}
        if sizes:
            columns["size, px"] = {self.name_of(kind): sizes.get(kind, 0) for kind in kinds}
        unused = sum(not sum(some.values()) for some in counts.values())
        yield Bars(
            key="classes", title="classes", unit=self._unit, counts=counts, columns=columns,
            note=f"{unused:,} of {len(kinds):,} never met" if unused else "",
        )  # fmt: skip
        if objects and len(kinds) > 1 and self._pairs:
            yield self._together(kinds)

    def _in_order(self, only: frozenset[str]) -> list[ClassKey]:
        """The most frequent first."""
        total: Counter[ClassKey] = sum(self._objects.values(), Counter())
        kinds = [kind for kind in {**self._names, **total} if not only or self.name_of(kind) in only]
        return sorted(kinds, key=lambda kind: -total[kind])

    def _together(self, kinds: list[ClassKey]) -> Grid:
        some = sorted(kinds, key=lambda kind: -self._images[kind])[:_TOGETHER]
        left = f"the {len(some)} most frequent of {len(kinds):,} classes" if len(some) < len(kinds) else ""
        return Grid(
            key="co-occurrence", title="classes in one image", unit="images", shape="pairs", note=left,
            names=[self.name_of(kind) for kind in some], values=[[self._both(one, other) for other in some] for one in some],
        )  # fmt: skip

    def _both(self, one: ClassKey, other: ClassKey) -> int:
        if one == other:
            return self._images[one]
        return self._pairs[one, other] + self._pairs[other, one]


_SIZES = 200  # different sizes that are listed


def image_statistics(data: ImageSet, cache: Cache, settings: Settings, progress: Progress | None) -> Statistics:
    """Measure every image, and count."""
    counts = ImageCounts(data, settings.classes)
    samples = scan(data, cache, jobs=settings.jobs, quick=True, pixels=settings.pixels, boxes=True, progress=progress)
    with contextlib.closing(samples):  # Ctrl-C closes it, and it keeps what was done
        for entry, facts in samples:
            counts.add(entry, facts)
    counts.check_names()
    report = Statistics(format=data.format, splits=counts.splits, classes=sorted(settings.classes))
    report.add_faults([*data.faults, *counts.faults], decoded=settings.pixels)
    report.figures = list(counts.figures())
    if not settings.pixels:
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

    def add(self, entry: Entry, seen: Facts) -> None:
        """One sample."""
        self.faults += seen.faults
        kinds, boxes = self._wanted(seen)
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
        for channel in seen.histograms:
            splits = self._pixels.setdefault((channel.name, channel.top), {})
            splits[entry.split] = _joined(splits[entry.split], channel) if entry.split in splits else channel
        folders = [folder_of_masks(mask.file) for mask in seen.masks]
        for folder in dict.fromkeys(folders):
            masks = [mask for mask, of_mask in zip(seen.masks, folders, strict=True) if of_mask == folder]
            self._masks.setdefault(folder, FolderOfMasks(folder, self._data.classes)).add(entry.split, masks)

    def _wanted(self, seen: Facts) -> tuple[list[ClassKey], list[float]]:
        """Classes of the sample's objects, or its own; with their boxes."""
        kinds = list(seen.kinds)
        self._met.update(map(self._classes.name_of, kinds))
        if not self._only:
            return kinds, list(seen.boxes)
        places = [place for place, kind in enumerate(kinds) if self._classes.name_of(kind) in self._only]
        boxes = [value for place in places for value in seen.boxes[4 * place : 4 * place + 4]]
        return [kinds[place] for place in places], boxes

    def check_names(self) -> None:
        """Say so where a class was asked for that is not there."""
        missing = sorted(self._only - self._met)
        if missing:
            there = ", ".join(sorted(self._met)[:20]) or "none"
            raise UsageError(f"{self._data.root} has no class {missing[0]}", fix=f"one of: {there}")

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
            yield _pixel_histogram(name, top, splits)

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


def _joined(one: Channel, other: Channel) -> Channel:
    """The same channel of two images."""
    bins = tuple(here + there for here, there in zip(one.bins, other.bins, strict=True))
    sums = (one.number + other.number, one.total + other.total, one.squares + other.squares)
    return Channel(one.name, one.top, *sums, min(one.low, other.low), max(one.high, other.high), bins)


def _pixel_histogram(name: str, top: int, splits: dict[str, Channel]) -> Histogram:
    """The channel in all images of all splits; its median is read from the bins."""
    whole = reduce(_joined, splits.values())
    mean = whole.total / max(whole.number, 1)
    deviation = math.sqrt(max(0.0, whole.squares / max(whole.number, 1) - mean * mean))
    half = int(np.searchsorted(np.cumsum(whole.bins), whole.number / 2))
    return Histogram(
        key=f"pixels-{name}" + ("" if top == 256 else f"-{top}"), title=f"{name}, 0 to {top - 1:,}", unit="values of pixels",
        edges=[place * top / len(whole.bins) for place in range(len(whole.bins) + 1)], mean=mean, deviation=deviation,
        low=float(whole.low), high=float(whole.high), median=(half + 0.5) * top / len(whole.bins),
        counts={split: list(splits[split].bins) for split in sorted(splits, key=order_of)},
        note=f"as shares of {top - 1:,}: mean {mean / (top - 1):.4f}, deviation {deviation / (top - 1):.4f}",
    )  # fmt: skip
