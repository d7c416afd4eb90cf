"""Image data as a whole: what shows only when all samples were seen. Keeps about 500 bytes of each, never its pixels."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator

import numpy as np

from holdfast.data.checks.channels import channel_problems
from holdfast.data.checks.classes import class_problems
from holdfast.data.checks.image_size import blur_problems
from holdfast.data.checks.kinds import BY_CODE
from holdfast.data.checks.masks import folder_problems
from holdfast.data.checks.split_statistics import Spread, pooled, share_problems, statistics_problems
from holdfast.data.duplicates import look_alike, pair_problems, same_content
from holdfast.data.facts import Facts, MaskFacts
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.problem import Fault, Problem, gathered
from holdfast.data.samples import ClassKey, Entry, ImageSet

_COLOURS = ("red", "green", "blue", "alpha")


class Gathering:
    """Takes the facts of one sample after the other."""

    def __init__(self, data: ImageSet) -> None:
        self._data = data
        self._faults: list[Fault] = [*data.faults, *_links(data)]
        self._entries: list[Entry] = []
        self._channels: list[int] = []
        self._sharpness = array("f")
        self._looks: list[int] = []
        self._thumbnails = bytearray()
        self._looked: list[int] = []
        self._means: dict[str, list[tuple[float, ...]]] = {}
        self._deviations: dict[str, list[tuple[float, ...]]] = {}
        self._masks: dict[str, list[MaskFacts]] = {}
        self.classes: dict[str, Counter[ClassKey]] = {}

    def add(self, entry: Entry, facts: Facts) -> None:
        """One sample."""
        if facts.thumbnail:
            self._looked.append(len(self._entries))
            self._looks.append(facts.look)
            self._thumbnails += bytes.fromhex(facts.thumbnail)
        self._entries.append(entry)
        self._channels.append(facts.channels)
        self._sharpness.append(facts.sharpness)
        self._faults += facts.faults
        if facts.means:
            self._means.setdefault(entry.split, []).append(facts.means)
            self._deviations.setdefault(entry.split, []).append(facts.deviations)
        for mask in facts.masks:
            self._masks.setdefault(folder_of_masks(mask.file), []).append(mask)
        counts = self.classes.setdefault(entry.split, Counter())
        for kind, count in facts.classes:
            counts[kind] += count

    @property
    def splits(self) -> dict[str, int]:
        """Samples of each split, in the order of the set."""
        counts = Counter(entry.split for entry in self._entries)
        return {split: counts[split] for split in self._data.splits}

    def named_classes(self) -> dict[str, int]:
        """Samples or objects of each class, by name."""
        total: Counter[ClassKey] = sum(self.classes.values(), Counter())
        keys = {**dict.fromkeys(self._data.classes), **dict.fromkeys(total)}
        return {str(self._data.classes.get(key, key)): total.get(key, 0) for key in keys}

    def problems(self) -> Iterator[Problem]:
        """Everything that is wrong."""
        yield from gathered(self._faults, BY_CODE)
        files = [entry.image for entry in self._entries]
        yield from channel_problems(files, self._channels)
        yield from blur_problems(files, self._sharpness)
        yield from self._class_problems()
        yield from self._split_problems()
        for folder, masks in sorted(self._masks.items()):
            yield from folder_problems(masks, folder, len(self._data.classes))
        yield from self._duplicates(files)

    def _class_problems(self) -> Iterator[Problem]:
        if self._data.format == "masks":
            return
        names = self._data.classes if self._data.classes_are_known else {}
        total: Counter[ClassKey] = sum(self.classes.values(), Counter())
        where = self._data.described_by or "."
        yield from class_problems(total, names, where, classification=not self._data.has_boxes)
        yield from share_problems({split: counts for split, counts in self.classes.items() if counts}, self._data.classes)

    def _split_problems(self) -> Iterator[Problem]:
        """Compare the statistics of the splits, each channel for itself; only images with the usual number of channels."""
        usual = Counter(len(means) for some in self._means.values() for means in some).most_common(1)
        if len(self._means) < 2 or not usual:
            return
        width = usual[0][0]
        splits = {split: dict(self._spreads(split, width)) for split in self._data.splits if split in self._means}
        yield from statistics_problems(splits, {})

    def _spreads(self, split: str, width: int) -> Iterator[tuple[str, Spread]]:
        for word, values in (("brightness of", self._means[split]), ("contrast of", self._deviations[split])):
            some = [value for value in values if len(value) == width]
            for channel in range(width if some else 0):
                name = "grey" if width < 3 else _COLOURS[min(channel, 3)]
                yield f"{word} {name}", Spread(len(some), *pooled([value[channel] for value in some]))

    def _duplicates(self, files: list[str]) -> Iterator[Problem]:
        splits = [entry.split for entry in self._entries]
        sizes = [self._data.listing.files[file].size for file in files]
        exact = list(same_content(self._data.root, files, sizes))
        exact += _listed_twice(files)
        looked = np.array(self._looked, dtype=np.int64)
        once = ~np.isin(looked, [later for _, later in exact])  # equal ones need not be compared once more
        thumbnails = np.frombuffer(bytes(self._thumbnails), dtype=np.uint8).reshape(-1, 256)
        pairs = look_alike(np.array(self._looks, dtype=np.uint64)[once], thumbnails[once])
        numbers = looked[once].tolist()
        yield from pair_problems(files, splits, exact, [(numbers[one], numbers[other]) for one, other in pairs])


def _listed_twice(files: list[str]) -> Iterator[tuple[int, int]]:
    """One file that two splits (or one list twice) name."""
    first: dict[str, int] = {}
    for number, file in enumerate(files):
        if file in first:
            yield first[file], number
        first.setdefault(file, number)


def _links(data: ImageSet) -> Iterator[Fault]:
    return (Fault("path-outside", path, 0, "a link that leads out of the folder") for path in data.listing.outside)
