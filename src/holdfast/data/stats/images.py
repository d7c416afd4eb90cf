"""Statistics of image data: all samples go by once, in bounded memory."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from holdfast.data.cache import Cache
from holdfast.data.checks.masks import kind_of_masks
from holdfast.data.formats.detect import Settings
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, Facts, ImageSet, MaskFacts
from holdfast.data.scan import Progress, scan
from holdfast.data.stats.figures import Distribution, Figure, Grid, Histogram, Statistics, bars
from holdfast.errors import UsageError
from holdfast.units import count

_SIDE, _COVER = 32, 16  # of the map of boxes, and of that of what masks cover
_ENOUGH = 10  # boxes for each field of the map
_SMALL, _LARGE = 32.0, 96.0  # pixels: COCO's limits
_AT_ONCE = 7 * 4096  # numbers that wait until they are counted
_TOGETHER = 40  # classes of the figure of pairs
_IN_ONE = 200  # classes of one image that are paired
_SIZES = 200  # different sizes that are listed
_DEPTHS = {1: "1 (grey)", 3: "3 (colour)", 4: "4 (colour, alpha)"}


def image_statistics(data: ImageSet, cache: Cache, settings: Settings, progress: Progress | None) -> Statistics:
    """Measure every image, and count."""
    counts = _ImageCounts(data, settings.classes)
    for entry, facts in scan(data, cache, jobs=settings.jobs, quick=True, pixels=settings.pixels, boxes=True, progress=progress):
        counts.add(entry, facts)
    counts.check_names()
    report = Statistics(format=data.format, splits=counts.splits, classes=sorted(settings.classes))
    report.add_faults([*data.faults, *counts.faults], decoded=settings.pixels)
    report.figures = list(counts.figures())
    if not settings.pixels:
        report.notes.append("--pixels decodes the images as well: values of the channels, their means and deviations")
    return report


class _ImageCounts:
    """Takes one sample after the other. With `only`, other classes are left out, and images that hold none of these."""

    def __init__(self, data: ImageSet, only: frozenset[str]) -> None:
        self._data, self._only = data, only
        self._classes = _ClassCounts(data.classes, "objects" if data.has_boxes else "images")
        self._met: set[str] = {str(name) for name in data.classes.values()}
        self._splits: Counter[str] = Counter()
        self._boxes = _BoxCounts()
        self._objects: dict[str, Counter[int]] = {}
        self._sizes: dict[str, Counter[tuple[int, int]]] = {}
        self._channels: dict[str, Counter[int]] = {}
        self._pixels: dict[tuple[str, int], Distribution] = {}
        self._masks: dict[str, _FolderOfMasks] = {}
        self.faults: list[Fault] = []

    def add(self, entry: Entry, seen: Facts) -> None:
        """One sample."""
        self.faults += seen.faults
        kinds, boxes = self._wanted(seen)
        if self._only and not kinds:
            return
        split = entry.split
        self._splits[split] += 1
        self._classes.add(split, kinds)
        if self._data.has_boxes:
            self._objects.setdefault(split, Counter())[len(kinds)] += 1
            self._boxes.add(split, kinds, boxes, seen.width, seen.height)
        if seen.width and seen.height:
            self._sizes.setdefault(split, Counter())[seen.width, seen.height] += 1
            self._channels.setdefault(split, Counter())[seen.channels] += 1
        for channel in seen.histograms:
            self._pixels.setdefault((channel.name, channel.top), Distribution()).add(split, channel.values, channel.counts)
        folders: dict[str, list[MaskFacts]] = {}
        for mask in seen.masks:
            folders.setdefault(folder_of_masks(mask.file), []).append(mask)
        for folder, masks in folders.items():
            self._masks.setdefault(folder, _FolderOfMasks(folder, self._data.classes)).add(split, masks)

    def _wanted(self, seen: Facts) -> tuple[Sequence[ClassKey], Sequence[float]]:
        """Classes of the sample's objects, or its own; with their boxes."""
        self._met.update(map(self._classes.name_of, seen.kinds))
        if not self._only:
            return seen.kinds, seen.boxes
        places = [place for place, kind in enumerate(seen.kinds) if self._classes.name_of(kind) in self._only]
        boxes = [value for place in places for value in seen.boxes[4 * place : 4 * place + 4]]
        return [seen.kinds[place] for place in places], boxes

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
        if self._objects:
            empty = sum(some[0] for some in self._objects.values())
            note = f"{count(empty, 'image')} without any" if empty else ""
            yield Distribution().add_counts(self._objects).histogram("objects-per-image", "objects per image", note=note)
            yield from self._boxes.figures()
        yield from of_classes[1:]
        folders: list[_FolderOfMasks] = []
        for _, folder in sorted(self._masks.items()):
            yield from folder.figures(alone=not any(folder.covers_like(other) for other in folders))
            folders.append(folder)
        if self._sizes:
            yield from self._image_sizes()
        for (name, top), values in self._pixels.items():
            yield _pixel_histogram(name, top, values)

    def _image_sizes(self) -> Iterator[Figure]:
        sizes = {size for some in self._sizes.values() for size in some}
        yield bars("image-sizes", "image sizes", "images", self._sizes, most=_SIZES, name=lambda size: f"{size[0]} × {size[1]}")
        for place, word in enumerate(("width", "height") if len(sizes) > 1 else ()):
            values = Distribution()
            for split, some in self._sizes.items():
                values.add(split, [size[place] for size in some], list(some.values()))
            yield values.histogram(f"image-{word}", f"image {word}, px", growing=values.high > 4 * values.low)
        depths = sorted({depth for some in self._channels.values() for depth in some})
        yield bars(
            "channels", "channels", "images", self._channels, kinds=depths, name=lambda depth: _DEPTHS.get(depth, str(depth))
        )


class _BoxCounts:
    """Takes the boxes of one image after the other: how large they are, of what shape, and where in the image."""

    def __init__(self) -> None:
        self._sizes, self._areas, self._aspects = Distribution(), Distribution(), Distribution()
        self._map = np.zeros((_SIDE, _SIDE), dtype=np.int64)
        self._small = self._large = self._flat = 0
        self._waiting: dict[str, array[float]] = {}
        self._numbers: dict[ClassKey, int] = {}
        self._by_class: list[Distribution] = []

    def add(self, split: str, kinds: Sequence[ClassKey], boxes: Sequence[float], width: int, height: int) -> None:
        """Four shares of the image for each box; without a width and height its size in pixels is not known."""
        waiting = self._waiting.setdefault(split, array("d"))
        for place, kind in enumerate(kinds):
            if kind not in self._numbers:
                self._numbers[kind] = len(self._by_class)
                self._by_class.append(Distribution())
            waiting.extend((self._numbers[kind], *boxes[4 * place : 4 * place + 4], width, height))
        if len(waiting) >= _AT_ONCE:
            self._count(split)

    def _count(self, split: str) -> None:
        rows = np.array(self._waiting.pop(split)).reshape(-1, 7)
        kinds, x, y, across, down, width, height = rows[np.isfinite(rows).all(axis=1)].T
        fields = np.clip(np.stack([y, x]) * _SIDE, 0, _SIDE - 1).astype(np.int64)
        np.add.at(self._map, (fields[0], fields[1]), 1)
        good = (across > 0) & (down > 0)
        self._flat += int((~good).sum())
        self._areas.add(split, 100 * (across * down)[good])
        good &= (width > 0) & (height > 0)
        wide, high = (across * width)[good], (down * height)[good]
        sizes = np.sqrt(wide * high)
        self._sizes.add(split, sizes)
        self._aspects.add(split, wide / high)
        for kind in np.unique(kinds[good]):
            self._by_class[int(kind)].add(split, sizes[kinds[good] == kind])
        self._small += int((sizes < _SMALL).sum())
        self._large += int((sizes >= _LARGE).sum())

    def medians(self) -> dict[ClassKey, int]:
        """The usual size of each class, in pixels. Counts all that still waits."""
        for split in list(self._waiting):
            self._count(split)
        medians = {kind: self._by_class[number].median() for kind, number in self._numbers.items()}
        return {kind: round(size) for kind, size in medians.items() if size is not None}

    def figures(self) -> Iterator[Figure]:
        """All that there is to see, once the medians were asked for."""
        total = self._sizes.number
        some = {"small": self._small, "medium": total - self._small - self._large, "large": self._large}
        note = ", ".join(f"{kind} {count / max(1, total):.0%}" for kind, count in some.items()) + " (limits 32 and 96 pixels)"
        note += f"; {self._flat:,} without area are not in it" if self._flat else ""
        for values, key, title, unit, text in (
            (self._sizes, "box-size", "box size, px", "√(width × height)", note),
            (self._areas, "box-area", "box area, % of image", "", ""),
            (self._aspects, "box-aspect", "box width / height", "", ""),
        ):
            if values.number:
                yield values.histogram(key, title, unit, text, growing=True)
        if self._map.any():
            fields = self._map.astype(np.float64)
            if fields.sum() < _ENOUGH * fields.size:  # fewer fields, so that it is not all chance
                fields = fields.reshape(_SIDE // 2, 2, _SIDE // 2, 2).sum(axis=(1, 3))
            yield Grid(key="box-positions", title="box positions", unit="middles of boxes", shape="map", values=fields.tolist())


class _ClassCounts:
    """Takes the classes of one sample after the other, by split; `unit` is what is counted: objects or images."""

    def __init__(self, names: dict[ClassKey, str], unit: str) -> None:
        self._names, self._unit = names, unit
        self._objects: dict[str, Counter[ClassKey]] = {}
        self._images: Counter[ClassKey] = Counter()
        self._pairs: Counter[tuple[ClassKey, ClassKey]] = Counter()

    def add(self, split: str, kinds: Sequence[ClassKey]) -> None:
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
        total: Counter[ClassKey] = sum(self._objects.values(), Counter())
        kinds = [kind for kind in {**self._names, **total} if not only or self.name_of(kind) in only]
        kinds.sort(key=lambda kind: -total[kind])
        if not kinds:
            return
        unused = sum(not total[kind] for kind in kinds)
        note = f"{unused:,} of {len(kinds):,} never met" if unused else ""
        made = bars("classes", "classes", self._unit, self._objects, kinds=kinds, name=self.name_of, note=note)
        if self._unit == "objects":
            made.columns["images"] = {self.name_of(kind): self._images[kind] for kind in kinds}
        if sizes:
            made.columns["size, px"] = {self.name_of(kind): sizes.get(kind, 0) for kind in kinds}
        yield made
        if self._unit == "objects" and len(kinds) > 1 and self._pairs:
            some = sorted(kinds, key=lambda kind: -self._images[kind])[:_TOGETHER]
            left = f"the {len(some)} most frequent of {len(kinds):,} classes" if len(some) < len(kinds) else ""
            together = self._pairs + Counter({(kind, kind): self._images[kind] for kind in some})
            yield Grid(
                key="co-occurrence", title="classes in one image", unit="images", shape="pairs", note=left,
                names=[self.name_of(kind) for kind in some],
                values=[[together[row, other] or together[other, row] for other in some] for row in some],
            )  # fmt: skip


class _FolderOfMasks:
    """Takes the masks of one image after the other: what they cover, their classes or objects. Their kind shows at the end."""

    def __init__(self, folder: str, names: dict[ClassKey, str]) -> None:
        self._folder, self._names = folder, names
        self._facts: list[MaskFacts] = []
        self._cover = np.zeros((_COVER, _COVER))
        self._covered, self._objects, self._sizes = Distribution(), Distribution(), Distribution()
        self._pixels: dict[str, Counter[int]] = {}
        self._images: Counter[int] = Counter()
        self._samples = self._empty = 0
        self._one_each = False

    def add(self, split: str, masks: list[MaskFacts]) -> None:
        """All masks of one image in this folder: one, or one for each object."""
        self._samples += 1
        self._one_each |= len(masks) > 1
        covers: list[npt.NDArray[np.float64]] = [np.frombuffer(bytes.fromhex(mask.cover), np.uint8) / 255.0 for mask in masks]
        cover = np.minimum(1.0, np.sum(covers, axis=0)).reshape(_COVER, _COVER)
        self._cover += cover
        self._covered.add(split, [100 * cover.mean()] if cover.any() else [])
        self._empty += not cover.any()
        areas: list[int] = []
        for mask in masks:
            self._facts.append(mask._replace(file="", pixels=(), cover=""))
            pixels = dict(zip(mask.values, mask.pixels, strict=True))
            object_pixels = [count for value, count in pixels.items() if value > 0]
            areas += [sum(object_pixels)] if len(masks) > 1 else object_pixels
            self._pixels.setdefault(split, Counter()).update(pixels)
            self._images.update(mask.values)
        self._objects.add(split, [len(areas)])
        self._sizes.add(split, [area**0.5 for area in areas if area])

    def covers_like(self, other: _FolderOfMasks) -> bool:
        """Whether two folders cover the same: one of them with objects, the other one without."""
        return self._samples == other._samples and bool(np.allclose(self._cover, other._cover))

    def figures(self, *, alone: bool) -> Iterator[Figure]:
        """What there is to see of this kind of masks; what they cover only once, where another folder covers the same."""
        kind = "instance" if self._one_each else kind_of_masks(self._facts, self._folder)
        name = self._folder or "masks"
        if kind == "classes":
            made = bars(f"{name}-classes", f"{name}: classes", "pixels", self._pixels, name=self._name_of)
            made.columns["images"] = {self._name_of(value): count for value, count in self._images.items()}
            yield made
        if kind == "instance":
            yield self._objects.histogram(f"{name}-objects", f"{name} per image")
            if self._sizes.number:
                yield self._sizes.histogram(f"{name}-sizes", f"{name} size, px", "√area", growing=True)
        if not alone:
            return
        note = f"{count(self._empty, 'image')} without an object" if self._empty else ""
        if self._covered.number:
            yield self._covered.histogram(f"{name}-cover", f"{name} cover, %", "of the image", note, growing=True)
        share = np.round(self._cover / max(self._samples, 1), 4).tolist()
        yield Grid(key=f"{name}-positions", title=f"{name}: positions", unit="fraction of images", shape="map", values=share)

    def _name_of(self, value: int) -> str:
        return str(self._names.get(value, value))


def _pixel_histogram(name: str, top: int, values: Distribution) -> Histogram:
    """The channel in all images of all splits."""
    _, mean, deviation = values.spread
    note = f"as fractions of {top - 1:,}: mean {mean / (top - 1):.4f}, deviation {deviation / (top - 1):.4f}"
    key = f"pixels-{name}" + ("" if top == 256 else f"-{top}")
    return values.histogram(key, f"{name}, 0 to {top - 1:,}", "values of pixels", note)
