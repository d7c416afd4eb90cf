"""Measure one sample of image data: the size of its image, its boxes, its masks, its pixels where they are wanted.

Only the beginning of an image is read as long as its size is all that is asked for. What the processes of a scan do all day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.checks.images import EMPTY, UNREADABLE
from holdfast.data.examine import path_in
from holdfast.data.listing import order_of, read_bytes, read_ends
from holdfast.data.pixels import opened, read_header
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, Label, ReadLabel
from holdfast.data.stats.figures import Histogram
from holdfast.data.stats.mask_figures import MaskSeen, masks_seen

if TYPE_CHECKING:
    from PIL import Image


# The values of an image's pixels, by channel: counted, so that means and deviations over a whole set are exact.

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


_HEAD = 1 << 16
_LARGEST = 1 << 30
_DIGITS = 6


class Measured(NamedTuple):
    """One sample. `boxes` has four numbers for each of `kinds`: middle, width and height as shares of the image.

    They are NaN where nothing says how large the image is.
    """

    width: int = 0
    height: int = 0
    channels: int = 0
    kinds: tuple[ClassKey, ...] = ()
    boxes: tuple[float, ...] = ()
    masks: tuple[MaskSeen, ...] = ()
    pixels: tuple[Channel, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How samples are measured; it is sent to each process once. With `pixels` every image is decoded."""

    root: Path
    read_label: ReadLabel
    pixels: bool = False

    def look(self, entry: Entry) -> Measured:
        """Measure one sample. Never raises: what goes wrong is a fault of the sample."""
        faults: list[Fault] = []
        seen = self._image(entry.image, faults)
        label = self.read_label(self.root, entry)
        masks = tuple(masks_seen(self.root, entry.masks, faults))
        return seen._replace(
            kinds=tuple(thing.class_id for thing in label.things),
            boxes=_shares(label, seen.width, seen.height),
            masks=masks,
            faults=(*faults, *label.faults),
        )

    def lost(self, fault: Fault) -> Measured:
        """What is known of a sample on which a process was lost."""
        return Measured(faults=(fault,))

    def remembered(self, row: list[Any]) -> Measured:
        """A sample from what JSON made of it."""
        made = Measured._make(row)
        return made._replace(
            masks=tuple(MaskSeen._make(mask) for mask in made.masks),
            pixels=tuple(Channel._make(channel) for channel in made.pixels),
            faults=tuple(Fault._make(fault) for fault in made.faults),
        )

    def _image(self, file: str, faults: list[Fault]) -> Measured:
        try:
            path = path_in(self.root, file)
            head, _ = read_ends(path, _HEAD, 0)
            if not head:
                faults.append(Fault(EMPTY.code, file, 0, "0 bytes"))
                return Measured()
            header = read_header(head)
            if header.width and header.height and not self.pixels:
                return Measured(header.width, header.height, header.channels)
            image = opened(read_bytes(path, limit=_LARGEST))
            pixels = tuple(channels_of(image)) if self.pixels else ()
            return Measured(*image.size, len(image.getbands()), pixels=pixels)
        except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files: struct.error, SyntaxError, …
            faults.append(Fault(UNREADABLE.code, file, 0, str(error)[:200] or type(error).__name__))
            return Measured()


def _shares(label: Label, width: int, height: int) -> tuple[float, ...]:
    """Boxes as shares of the image; of one that a label states to lie on its side, those of the label's own size."""
    if label.size == (height, width) or not width:
        width, height = label.size or (width, height)
    across, down = (1.0, 1.0) if label.shares else (float(width), float(height))
    found: list[float] = []
    for thing in label.things:
        left, top, right, bottom = thing.box
        if across and down:
            four = ((left + right) / 2 / across, (top + bottom) / 2 / down, (right - left) / across, (bottom - top) / down)
            found += [round(value, _DIGITS) for value in four]
        else:
            found += [math.nan] * 4
    return tuple(found)
