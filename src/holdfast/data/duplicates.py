"""The same image twice, or nearly: by content, and by how it looks (perceptual hash, confirmed by a thumbnail).

Justified on BCCD and the nuclei: saved again at quality 40, scaled to two thirds or brightened, 300 of their images keep the hash
within 4 of 64 bits and the thumbnail within a correlation of 0.958; two different images are at least 10 bits apart, with a
correlation of at most 0.78. One pair of BCCD is nearer (4 bits, 0.989): the same cells, photographed twice, in train and in val.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.listing import read_bytes
from holdfast.data.problem import Kind, Problem, problem

LEAK = Kind(
    "split-leak", "critical", "samples that are in two splits: {count}",
    "remove them from one of the two (--fix keeps the first): the metric counts what was learnt by heart",
)  # fmt: skip
NEAR_LEAK = Kind(
    "split-leak", "warning", "samples that look nearly the same in two splits: {count}",
    "look at the pairs; where they show the same scene, keep both in one split (--fix drops the later one)",
)  # fmt: skip
TWICE = Kind(
    "duplicate-sample", "warning", "samples that are there more than once: {count}", "keep one of each: --fix writes such a list"
)
NEAR = Kind(
    "near-duplicate",
    "info",
    "samples that look nearly like another one: {count}",
    "nothing, if they are frames of one scene on purpose",
)
KINDS = (LEAK, TWICE, NEAR)

_LARGEST = 1 << 30
_BITS = 6
_ALIKE = 0.95
_MANY = 50_000  # images, above which hashes are compared in larger pieces: pairs more than 3 bits apart may then be missed
_MOST_PAIRS = 20_000_000
Pair = tuple[int, int]


def same_content(root: Path, files: Sequence[str], sizes: Sequence[int]) -> Iterator[Pair]:
    """Pairs of files with the same bytes; only files of one size are read."""
    by_size: dict[int, list[int]] = {}
    for number, size in enumerate(sizes):
        by_size.setdefault(size, []).append(number)
    first: dict[tuple[int, bytes], int] = {}
    for size, numbers in by_size.items():
        for number in _same_middle(root, files, size, numbers) if len(numbers) > 1 and size else ():
            try:
                digest = hashlib.blake2b(read_bytes(root / files[number], limit=_LARGEST)).digest()
            except (OSError, ValueError):
                continue
            if (size, digest) in first and files[first[size, digest]] != files[number]:
                yield first[size, digest], number
            first.setdefault((size, digest), number)


def _same_middle(root: Path, files: Sequence[str], size: int, numbers: list[int]) -> list[int]:
    """Of files of one size those that have the same 64 bytes in the middle as another one: hardly any do by chance."""
    groups: dict[bytes, list[int]] = {}
    for number in numbers:
        try:
            with (root / files[number]).open("rb", buffering=0) as file:
                file.seek(size // 2)
                groups.setdefault(file.read(64), []).append(number)
        except OSError:
            continue
    return [number for some in groups.values() if len(some) > 1 for number in some]


def look_alike(hashes: npt.NDArray[np.uint64], thumbnails: npt.NDArray[np.uint8]) -> list[Pair]:
    """Pairs of images that look alike. Both hashes and thumbnails must be like each other."""
    near = _near(hashes)
    if not len(near):
        return []
    one, other = (_normal(thumbnails[near[:, side]]) for side in (0, 1))
    alike = np.einsum("ij,ij->i", one, other) >= _ALIKE
    return [(int(a), int(b)) for a, b in near[alike]]


def _normal(thumbnails: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    values = thumbnails.astype(np.float32)
    values -= values.mean(axis=1, keepdims=True)
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-6)
    return values


def _near(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Pairs whose hashes differ in at most 6 bits: such a pair has one of 8 pieces of the hash in common."""
    pieces = hashes.astype(">u8").view(np.uint8 if len(hashes) <= _MANY else np.uint16).reshape(len(hashes), -1)
    found: list[npt.NDArray[np.int64]] = [np.empty((0, 2), np.int64)]
    for piece in pieces.T:
        order = np.argsort(piece, kind="stable")
        edges = np.flatnonzero(np.diff(piece[order])) + 1
        for group in np.split(order, edges):
            found += _close_pairs(group, hashes)
    return np.unique(np.concatenate(found), axis=0)


def _close_pairs(group: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]) -> Iterator[npt.NDArray[np.int64]]:
    """The near pairs of images that share a piece; very large groups are compared with their neighbours only."""
    reach = max(1, min(len(group) - 1, _MOST_PAIRS // max(len(group), 1)))
    for apart in range(1, reach + 1) if len(group) > 1 else ():
        one, other = group[:-apart], group[apart:]
        close = _bits(hashes[one] ^ hashes[other]) <= _BITS
        if close.any():
            pairs = np.stack([one[close], other[close]], axis=1)
            yield np.sort(pairs, axis=1)


def _bits(values: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """How many bits are set in each number."""
    bits = np.unpackbits(values.view(np.uint8).reshape(len(values), 8), axis=1)
    counts: npt.NDArray[Any] = bits.sum(axis=1, dtype=np.uint8)
    return counts


def pair_problems(files: Sequence[str], splits: Sequence[str], exact: Iterable[Pair], near: Iterable[Pair]) -> Iterator[Problem]:
    """Pairs as problems: in two splits they are a leak, in one they are only there twice. An exact pair is not told as near."""
    told: set[Pair] = set()
    for pairs, leak, twice in ((exact, LEAK, TWICE), (near, NEAR_LEAK, NEAR)):
        new = [pair for pair in pairs if pair not in told]
        told.update(new)
        across = [pair for pair in new if splits[pair[0]] != splits[pair[1]]]
        within = [pair for pair in new if splits[pair[0]] == splits[pair[1]]]
        for kind, some in ((leak, across), (twice, within)):
            if some:
                yield _as_problem(kind, files, splits, some)


def _as_problem(kind: Kind, files: Sequence[str], splits: Sequence[str], pairs: list[Pair]) -> Problem:
    one, other = pairs[0]
    later = list(dict.fromkeys(files[second] for _, second in pairs))
    said = [[files[first], files[second]] for first, second in pairs[:10_000]]
    between = f" ({splits[one]} and {splits[other]})" if splits[one] != splits[other] else ""
    return problem(kind, count=len(later), files=later, example=f"{files[other]} is {files[one]}{between}", pairs=said)
