"""Measure one sample of image data: the size of its image, its boxes, its masks, its pixels where they are wanted.

Only the beginning of an image is read as long as its size is all that is asked for. What the processes of a scan do all day.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.data.checks.image_whole import EMPTY, UNREADABLE
from holdfast.data.examine import path_in
from holdfast.data.image_header import read_header
from holdfast.data.listing import read_bytes, read_ends
from holdfast.data.pixels import opened
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, Label, ReadLabel
from holdfast.data.stats.mask_areas import MaskSeen, masks_seen
from holdfast.data.stats.pixel_counts import Channel, channels_of

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
