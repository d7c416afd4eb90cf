"""The values of an image's pixels, by channel: counted, so that means and deviations over a whole set are exact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.formats.splits import order_of
from holdfast.data.stats.figures import Histogram

if TYPE_CHECKING:
    from PIL import Image

BINS = 32
_EIGHT_BITS = ("1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "YCbCr")
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I")
_NAMES = {"RGB": ("red", "green", "blue"), "RGBA": ("red", "green", "blue", "alpha"), "LA": ("grey", "alpha")}


class Channel(NamedTuple):
    """One channel: what it is called, how far its values may reach, their number, sum, sum of squares, and 32 bins of them."""

    name: str
    top: int  # 256, or 65,536
    number: int
    total: float
    squares: float
    low: int
    high: int
    bins: tuple[int, ...]


def channels_of(image: Image.Image) -> Iterator[Channel]:
    """Decode an image and count; one of floating-point numbers has no range to count in, and is left out."""
    image.load()
    if image.mode in _SIXTEEN_BITS:
        yield from _sixteen(np.asarray(image))
        return
    if image.mode not in _EIGHT_BITS:
        return
    if image.mode in ("P", "1", "CMYK", "YCbCr"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    counts = np.array(image.histogram(), dtype=np.int64).reshape(-1, 256)
    for name, row in zip(_NAMES.get(image.mode, ("grey",)), counts, strict=True):
        yield _channel(name, 256, row)


def _sixteen(values: npt.NDArray[Any]) -> Iterator[Channel]:
    whole = values.astype(np.int64).ravel()
    if len(whole) and whole.min() >= 0 and whole.max() < 1 << 16:
        yield _channel("grey", 1 << 16, np.bincount(whole, minlength=1 << 16))


def _channel(name: str, top: int, counts: npt.NDArray[np.int64]) -> Channel:
    values = np.arange(top, dtype=np.float64)
    weighted = counts * values
    bins = tuple(int(one) for one in counts.reshape(BINS, -1).sum(axis=1))
    there = np.flatnonzero(counts)
    low, high = (int(there[0]), int(there[-1])) if len(there) else (0, 0)
    return Channel(name, top, int(counts.sum()), float(weighted.sum()), float((weighted * values).sum()), low, high, bins)


def joined(one: Channel, other: Channel) -> Channel:
    """The same channel of two images."""
    bins = tuple(here + there for here, there in zip(one.bins, other.bins, strict=True))
    sums = (one.number + other.number, one.total + other.total, one.squares + other.squares)
    return Channel(one.name, one.top, *sums, min(one.low, other.low), max(one.high, other.high), bins)


def pixel_histogram(name: str, top: int, splits: dict[str, Channel]) -> Histogram:
    """The channel in all images of all splits; its median is read from the bins."""
    whole = reduce(joined, splits.values())
    mean = whole.total / max(whole.number, 1)
    deviation = math.sqrt(max(0.0, whole.squares / max(whole.number, 1) - mean * mean))
    half = int(np.searchsorted(np.cumsum(whole.bins), whole.number / 2))
    return Histogram(
        key=f"pixels-{name}" + ("" if top == 256 else f"-{top}"), title=f"{name}, 0 to {top - 1:,}", unit="values of pixels",
        edges=[place * top / BINS for place in range(BINS + 1)], mean=mean, deviation=deviation,
        low=float(whole.low), high=float(whole.high), median=(half + 0.5) * top / BINS,
        counts={split: list(splits[split].bins) for split in sorted(splits, key=order_of)},
        note=f"as shares of {top - 1:,}: mean {mean / (top - 1):.4f}, deviation {deviation / (top - 1):.4f}",
    )  # fmt: skip
