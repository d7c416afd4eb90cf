"""Boxes of a set: how large, of what shape, and where in the image."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.data.samples import ClassKey
from holdfast.data.stats.figures import Figure, Grid
from holdfast.data.stats.values import Values

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
