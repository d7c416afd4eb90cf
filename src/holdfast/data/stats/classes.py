"""Counts of classes by split, in how many images each is, and which are seen together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations

from holdfast.data.formats.splits import order_of
from holdfast.data.samples import ClassKey
from holdfast.data.stats.figures import Bars, Figure, Grid

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
