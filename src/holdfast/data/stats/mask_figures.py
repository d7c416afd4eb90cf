"""Masks of a set, each folder of them for itself: what they cover, their classes or objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from holdfast.data.checks.masks import kind_of_masks
from holdfast.data.listing import order_of
from holdfast.data.samples import ClassKey, MaskFacts
from holdfast.data.stats.figures import Bars, Figure, Grid, Values

SIDE = 16  # of the map of what is covered


def _cover_of(mask: MaskFacts) -> npt.NDArray[np.float64]:
    return np.frombuffer(bytes.fromhex(mask.cover), dtype=np.uint8).reshape(SIDE, SIDE) / 255.0


class FolderOfMasks:
    """Takes the masks of one image after the other; what kind they are shows at the end."""

    def __init__(self, folder: str, names: dict[ClassKey, str]) -> None:
        self._folder = folder
        self._names = names
        self._facts: list[MaskFacts] = []
        self._cover = np.zeros((SIDE, SIDE))
        self._covered, self._objects, self._sizes = Values(growing=True), Values(), Values(growing=True)
        self._empty = 0
        self._pixels: dict[str, Counter[int]] = {}
        self._images: dict[str, Counter[int]] = {}
        self._samples = 0
        self._one_each = False

    def add(self, split: str, masks: list[MaskFacts]) -> None:
        """All masks of one image in this folder: one, or one for each object."""
        self._samples += 1
        self._one_each |= len(masks) > 1
        cover = np.minimum(1.0, sum((_cover_of(one) for one in masks), np.zeros((SIDE, SIDE))))
        self._cover += cover
        share = float(cover.mean())
        if share > 0:
            self._covered.add(split, 100 * share)
        self._empty += not share
        areas: list[int] = []
        for one in masks:
            self._facts.append(one._replace(file="", pixels=(), cover=""))
            found = {value: count for value, count in zip(one.values, one.pixels, strict=True) if value > 0}
            areas += [sum(found.values())] if len(masks) > 1 else found.values()
            self._pixels.setdefault(split, Counter()).update(dict(zip(one.values, one.pixels, strict=True)))
            self._images.setdefault(split, Counter()).update(one.values)
        self._objects.add(split, len(areas))
        for area in areas:
            if area:
                self._sizes.add(split, area**0.5)

    def covers_like(self, other: FolderOfMasks) -> bool:
        """Whether two folders cover the same: one of them with objects, the other one without."""
        return self._samples == other._samples and bool(np.allclose(self._cover, other._cover))

    def figures(self, *, alone: bool = True) -> Iterator[Figure]:
        """What there is to see of this kind of masks; what they cover only once, where another folder covers the same."""
        kind = "instance" if self._one_each else kind_of_masks(self._facts, self._folder)
        name = self._folder or "masks"
        made = []
        if kind == "classes":
            yield self._classes(name)
        if kind == "instance":
            made = [
                self._objects.histogram(f"{name}-objects", f"{name} per image", ""),
                self._sizes.histogram(f"{name}-sizes", f"{name} size, px", "√area"),
            ]
        if not alone:
            yield from (one for one in made if one is not None)
            return
        note = f"{self._empty:,} {'image' if self._empty == 1 else 'images'} without an object" if self._empty else ""
        made.append(self._covered.histogram(f"{name}-cover", f"{name} cover, %", "of the image", note))
        yield from (one for one in made if one is not None)
        share = np.round(self._cover / max(self._samples, 1), 4)
        title = f"{name}: positions"
        yield Grid(key=f"{name}-positions", title=title, unit="share of images", shape="map", values=share.tolist())

    def _classes(self, name: str) -> Bars:
        splits = sorted(self._pixels, key=order_of)
        total: Counter[int] = sum(self._pixels.values(), Counter())
        counts = {
            str(self._names.get(value, value)): {split: self._pixels[split][value] for split in splits}
            for value, _ in total.most_common()
        }
        images = {str(self._names.get(value, value)): sum(self._images[one][value] for one in splits) for value in total}
        return Bars(key=f"{name}-classes", title=f"{name}: classes", unit="pixels", counts=counts, columns={"images": images})
