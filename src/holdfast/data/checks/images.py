"""Images that do not decode, are empty, of an odd size, channels or rotation, or show nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.data.listing import suffix
from holdfast.data.pixels import MOST_PIXELS
from holdfast.data.problem import Fault, Problem, problem
from holdfast.data.samples import Entry, Label

# Images that are absurdly large, small or long, that show nothing, or are blurred.
# The limit of blur was chosen on BCCD: its images have at least 0.53 of the usual sharpness, and at most 0.33 once they are
# blurred by 4 % of their width. Of the 334 nuclei one is reported, which is lit unevenly and not blurred; of 10 that were
# blurred like that, all.


_SMALLEST = 10
_LONGEST = 5
_FEWEST = 20  # images, below which there is no usual sharpness
_BLURRED = 0.45  # of the usual sharpness
_MOST_PER_BYTE = 2000  # no image file packs more pixels into a byte: what claims to is broken, or made to harm


def odd_size(file: str, width: int, height: int) -> Iterator[Fault]:
    """Judge the size that the header states."""
    code = ""
    if width * height > MOST_PIXELS:
        code = "image-huge"
    elif 0 < min(width, height) < _SMALLEST:
        code = "image-tiny"
    elif max(width, height) > _LONGEST * min(width, height):
        code = "image-aspect"
    if code:
        yield Fault(code, file, 0, f"{width} × {height}")


def blur_problems(files: Sequence[str], sharpness: Sequence[float]) -> Iterator[Problem]:
    """Compare the sharpness of all images with the usual one; 0 stands for one that shows nothing."""
    measured = [value for value in sharpness if value]
    if len(measured) < _FEWEST:
        return
    usual = float(np.median(measured))
    blurred = [(file, value) for file, value in zip(files, sharpness, strict=True) if 0 < value < _BLURRED * usual]
    if blurred:
        shown = [f"{file}: {value / usual:.0%} of the median sharpness" for file, value in blurred]
        yield problem("image-blurred", count=len(blurred), files=[file for file, _ in blurred], example=shown[0], cases=shown)


def is_a_bomb(width: int, height: int, size: int) -> bool:
    """Whether so many pixels cannot honestly be in so few bytes."""
    return width * height > MOST_PIXELS and width * height > _MOST_PER_BYTE * size


# Images that are to be turned when shown (EXIF), with labels that fit only one of the two ways to read them.

_TURNS = {2: "mirrored", 3: "turned by 180°", 4: "mirrored upside down", 5: "mirrored and turned by 90°", 6: "turned by 90°",
          7: "mirrored and turned by 270°", 8: "turned by 270°"}  # fmt: skip


def rotated(entry: Entry, label: Label, orientation: int, width: int, height: int) -> Fault:
    """Which way of reading the image its labels fit, in words."""
    fits = {
        "stored": "the boxes fit the image as it is stored, not as it is shown",
        "shown": "the boxes fit the image as it is shown, not as it is stored",
    }.get(way_of(label, orientation, width, height), "the labels do not say which way they fit")
    return Fault("exif-rotation", entry.image, 0, f"{_TURNS[orientation]}; {fits}")


def way_of(label: Label, orientation: int, width: int, height: int) -> str:
    """`stored` or `shown`: the way of reading the image that the labels fit; empty where that cannot be told."""
    if label.shares or orientation < 5 or width == height:
        return ""
    stored = label.size in (None, (width, height)) and all(
        thing.box[2] <= width + 1 and thing.box[3] <= height + 1 for thing in label.things
    )
    turned = label.size in (None, (height, width)) and all(
        thing.box[2] <= height + 1 and thing.box[3] <= width + 1 for thing in label.things
    )
    return "" if stored == turned else "stored" if stored else "shown"


# Images with another number of channels than the rest, and sets whose images all have an alpha channel.

_CHANNELS = {1: "1 channel (grey)", 2: "2 channels (grey, alpha)", 3: "3 channels (RGB)", 4: "4 channels (RGBA)"}


def _channels(file: str, count: int) -> str:
    """The channels of an image in words; a JPEG has no alpha channel."""
    inks = count == 4 and suffix(file) in (".jpg", ".jpeg")
    return "4 channels (CMYK)" if inks else _CHANNELS.get(count, str(count))


def channel_problems(files: Sequence[str], channels: Sequence[int]) -> Iterator[Problem]:
    """Compare the channels of all images; 0 stands for one that could not be read."""
    counts = Counter(count for count in channels if count)
    if not counts:
        return
    usual, many = counts.most_common(1)[0]
    odd = [(file, count) for file, count in zip(files, channels, strict=True) if count not in (0, usual)]
    if odd:
        first = next(file for file, count in zip(files, channels, strict=True) if count == usual)
        cases = [f"{file}: {_channels(file, count)}" for file, count in odd]
        example = f"{cases[0]}; {many:,} others have {_channels(first, usual)}"
        yield problem("image-channels", count=len(odd), files=[file for file, _ in odd], example=example, cases=cases)
    elif usual == 4 and _channels(files[0], 4) == _CHANNELS[4]:
        yield problem("image-alpha", count=many, files=[], example=f"{files[0]}: RGBA")


_CUT = ("truncated", "unexpected end", "premature end", "not enough image data", "buffer is not large enough")


def from_decoder(file: str, message: str, cut: str) -> Fault:
    """The fault that a decoder's words stand for; `cut` is what the header showed to be missing."""
    if cut or any(word in message.lower() for word in _CUT):
        return Fault("image-truncated", file, 0, cut or message[:200])
    return Fault("image-unreadable", file, 0, message[:200])
