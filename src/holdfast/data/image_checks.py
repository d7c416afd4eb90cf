"""Image data as a whole: what shows only when all samples were seen. Keeps about 500 bytes of each, never its pixels."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.data.checks.classes import class_problems, share_problems, statistics_problems
from holdfast.data.checks.images import blur_problems, channel_problems
from holdfast.data.checks.masks import folder_problems
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.listing import IMAGES, read_bytes, read_parts, suffix
from holdfast.data.problem import MOST_CASES, Fault, Faults, Problem, problem
from holdfast.data.samples import ClassKey, Entry, Facts, ImageSet, MaskFacts
from holdfast.data.stats.figures import Spread

# The same image twice, or nearly: by content, and by how it looks (perceptual hash, confirmed by a thumbnail).
# Justified on BCCD and the nuclei: saved again at quality 40, scaled to two thirds or brightened, 300 of their images keep the
# hash within 4 of 64 bits and the thumbnail within a correlation of 0.958; two different images are at least 10 bits apart,
# with a correlation of at most 0.78. One pair of BCCD is nearer (4 bits, 0.989): the same cells, photographed twice, in train
# and in val.


_LARGEST = 1 << 30
_BITS = 6
_ALIKE = 0.95
_MOST_ALIKE = 128  # images that share a piece of their hash and are compared with the next one
_FEW_ALIKE = 32  # of them are compared one by one, which is faster than NumPy's calls
_ONES = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2), axis=1).sum(axis=1, dtype=np.uint8)
_PLACES = np.arange(4, dtype=np.int64) << 16
_ONE_BIT = np.array([0, *(1 << bit for bit in range(16))], np.int64)  # of 6 bits in 4 pieces, one piece has at most one
Pair = tuple[int, int]
Sizes = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def same_content(root: Path, files: Sequence[str], sizes: Sequence[int], looks: Mapping[int, int]) -> Iterator[Pair]:
    """Pairs of files with the same bytes; only files of one size and, where that is known, one perceptual hash are read."""
    alike: dict[tuple[int, int], list[int]] = {}
    for number, size in enumerate(sizes):
        alike.setdefault((size, looks.get(number, 0)), []).append(number)
    first: dict[tuple[int, bytes], int] = {}
    for (size, _), indices in alike.items():
        for number in _same_middle(root, files, indices) if len(indices) > 1 and size else ():
            try:
                digest = hashlib.blake2b(read_bytes(root / files[number], limit=_LARGEST)).digest()
            except (OSError, ValueError):
                continue
            if (size, digest) in first and files[first[size, digest]] != files[number]:
                yield first[size, digest], number
            first.setdefault((size, digest), number)


def _same_middle(root: Path, files: Sequence[str], indices: list[int]) -> list[int]:
    """Of files of one size those that have the same 64 bytes in the middle as another one: hardly any do by chance."""
    groups: dict[bytes, list[int]] = {}
    for number in indices:
        path = files[number] if files[number][0] == "/" else f"{root}/{files[number]}"  # a Path takes longer than the reading
        try:
            groups.setdefault(read_parts(path, (0.5, 64))[0], []).append(number)
        except OSError:
            continue
    return [number for some in groups.values() if len(some) > 1 for number in some]


def look_alike(hashes: npt.NDArray[np.uint64], thumbnails: npt.NDArray[np.uint8]) -> Iterator[Pair]:
    """Each image that looks like an earlier one, with the first of those. Both hashes and thumbnails must be like each other.

    Memory grows with the images, not with the pairs: all frames of a camera that does not move are pairs of the first one.
    """
    pieces = hashes.view(np.uint16).reshape(-1, 4).astype(np.int64) + _PLACES
    sizes = _sizes(thumbnails)
    met: dict[int, array[int]] = {}  # the images that have a piece at its place
    occurs = np.zeros(4 << 16, bool)
    occurs[pieces] = True
    seen: set[tuple[int, int]] = set()  # a hash, and the first image that those with it look like
    for number, own in enumerate(pieces):
        around = (own[:, None] ^ _ONE_BIT).ravel()
        buckets = [bucket for key in around[occurs[around]].tolist() if (bucket := met.get(key))]
        first = _first_alike(number, buckets, hashes, thumbnails, sizes) if buckets else None
        if first is not None:
            yield first, number
        same = (int(hashes[number]), number if first is None else first)
        if same not in seen:
            seen.add(same)
            for key in own.tolist():
                bucket = met.setdefault(key, array("q"))
                bucket.append(number)
                if len(bucket) > _MOST_ALIKE:  # the oldest stays: all look-alikes are pairs of it
                    del bucket[1]


def _first_alike(
    number: int, buckets: list[array[int]], hashes: npt.NDArray[np.uint64], thumbnails: npt.NDArray[np.uint8], sizes: Sizes
) -> int | None:
    """The first of the images that nearly share a piece of their hash with this one and look like it."""
    candidates = list(chain.from_iterable(buckets))
    if len(candidates) <= _FEW_ALIKE:
        own_hash = int(hashes[number])
        candidates = [other for other in candidates if (int(hashes[other]) ^ own_hash).bit_count() <= _BITS]
        if not candidates:
            return None
    some = np.array(candidates, np.int64)
    near = np.unique(some[_ONES[(hashes[some] ^ hashes[number]).view(np.uint16)].reshape(-1, 4).sum(axis=1) <= _BITS])
    (means, lengths), own = sizes, thumbnails[number].astype(np.float64)
    start, at_once = 0, 16
    while start < len(near):
        block = near[start : start + at_once]
        together = thumbnails[block].astype(np.float64) @ own - len(own) * means[number] * means[block]
        alike = np.flatnonzero(together >= _ALIKE * lengths[number] * lengths[block])
        if len(alike):
            return int(block[alike[0]])
        start, at_once = start + at_once, 4 * at_once
    return None


def _sizes(thumbnails: npt.NDArray[np.uint8]) -> Sizes:
    """The mean of each thumbnail, and how long it is as a vector without it."""
    means, squares = thumbnails.mean(axis=1), np.einsum("ij,ij->i", thumbnails, thumbnails, dtype=np.float64)
    return means, np.sqrt(np.maximum(squares - thumbnails.shape[1] * means * means, 1e-12))


def pair_problems(files: Sequence[str], splits: Sequence[str], exact: Iterable[Pair], near: Iterable[Pair]) -> Iterator[Problem]:
    """Pairs as problems: in two splits they are a leak, in one they are only there twice. An exact pair is not told as near."""
    reported: set[Pair] = set()
    for pairs, leak, twice in (
        (exact, "split-leak images", "duplicate-sample"),
        (near, "split-leak look-alike", "near-duplicate"),
    ):
        new = [pair for pair in pairs if pair not in reported]
        reported.update(new)
        across = [pair for pair in new if splits[pair[0]] != splits[pair[1]]]
        within = [pair for pair in new if splits[pair[0]] == splits[pair[1]]]
        for kind, some in ((leak, across), (twice, within)):
            if some:
                first, other = some[0]
                later = list(dict.fromkeys(files[second] for _, second in some))
                examples = [[files[first], files[second]] for first, second in some[:MOST_CASES]]
                between = f" ({splits[first]} and {splits[other]})" if kind == leak else ""
                example = f"{files[other]} matches {files[first]}{between}"
                yield problem(kind, count=len(later), files=later, example=example, pairs=examples)


_COLOURS = ("red", "green", "blue", "alpha")


class ImageFindings:
    """Takes the facts of one sample after the other."""

    def __init__(self, data: ImageSet) -> None:
        self._data = data
        links = [Fault("path-outside", path, 0, "a link that leads out of the folder") for path in data.listing.outside]
        broken = [Fault("image-missing", path, 0, "a link to nothing") for path in data.listing.broken if suffix(path) in IMAGES]
        self._faults = Faults([*data.faults, *links, *broken])
        self._entries: list[Entry] = []
        self._channels: list[int] = []
        self._sharpness = array("f")
        self._looks: list[int] = []
        self._thumbnails = bytearray()
        self._looked: list[int] = []
        self._levels: dict[str, list[tuple[tuple[float, ...], tuple[float, ...]]]] = {}  # means and deviations
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
        self._faults.add(facts.faults)
        if facts.means:
            self._levels.setdefault(entry.split, []).append((facts.means, facts.deviations))
        for mask in facts.masks:
            self._masks.setdefault(folder_of_masks(mask.file), []).append(mask._replace(pixels=(), cover=""))
        self.classes.setdefault(entry.split, Counter()).update(facts.kinds)

    @property
    def splits(self) -> dict[str, int]:
        """Samples of each split, in the order of the set."""
        counts = Counter(entry.split for entry in self._entries)
        return {split: counts[split] for split in self._data.splits}

    def named_classes(self) -> dict[str, int]:
        """Samples or objects of each class, by name."""
        total: Counter[ClassKey] = sum(self.classes.values(), Counter())
        keys = {**dict.fromkeys(self._data.classes), **dict.fromkeys(total)}
        return {self._data.class_name(key): total.get(key, 0) for key in keys}

    def problems(self) -> Iterator[Problem]:
        """Everything that is wrong."""
        yield from self._faults.problems()
        files = [entry.image for entry in self._entries]
        yield from channel_problems(files, self._channels)
        yield from blur_problems(files, self._sharpness)
        if self._data.format != "masks":
            yield from self._class_problems()
        yield from self._split_problems()
        for folder, masks in sorted(self._masks.items()):
            yield from folder_problems(masks, folder, len(self._data.classes))
        yield from self._duplicates(files)

    def _class_problems(self) -> Iterator[Problem]:
        names = self._data.classes if self._data.classes_are_known else {}
        total: Counter[ClassKey] = sum(self.classes.values(), Counter())
        where = self._data.described_by or "."
        yield from class_problems(total, names, where, classification=not self._data.has_boxes)
        yield from share_problems({split: counts for split, counts in self.classes.items() if counts}, self._data.classes)

    def _split_problems(self) -> Iterator[Problem]:
        """Compare the statistics of the splits, each channel for itself; only images with the usual number of channels."""
        usual = Counter(len(means) for some in self._levels.values() for means, _ in some).most_common(1)
        if len(self._levels) < 2 or not usual:
            return
        width = usual[0][0]
        names = [*_COLOURS[:width]] if width > 2 else ["grey"] * width
        splits: dict[str, dict[str, Spread]] = {}
        for split in (split for split in self._data.splits if split in self._levels):
            some = np.array([level for level in self._levels[split] if len(level[0]) == width])
            means, deviations = (some.mean(axis=0).tolist(), some.std(axis=0).tolist()) if len(some) else ([], [])
            splits[split] = {
                f"{word} {name}": Spread(len(some), mean, deviation)
                for word, *both in zip(("brightness of", "contrast of"), means, deviations, strict=False)
                for name, mean, deviation in zip(names, *both, strict=True)
            }
        yield from statistics_problems(splits, {})

    def _duplicates(self, files: list[str]) -> Iterator[Problem]:
        splits = [entry.split for entry in self._entries]
        sizes = [self._data.listing.files[file].size for file in files]
        exact = list(same_content(self._data.root, files, sizes, dict(zip(self._looked, self._looks, strict=True))))
        first: dict[str, int] = {}
        exact += [(first[file], number) for number, file in enumerate(files) if first.setdefault(file, number) != number]
        looked = np.array(self._looked, dtype=np.int64)
        once = ~np.isin(looked, [later for _, later in exact])  # equal ones need not be compared once more
        thumbnails = np.frombuffer(bytes(self._thumbnails), dtype=np.uint8).reshape(-1, 256)
        pairs = look_alike(np.array(self._looks, dtype=np.uint64)[once], thumbnails[once])
        indices = looked[once].tolist()
        yield from pair_problems(files, splits, exact, [(indices[first], indices[other]) for first, other in pairs])
