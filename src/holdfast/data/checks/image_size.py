"""Images that are absurdly large, small or long, that show nothing, or are blurred.

The limit of blur was chosen on BCCD: its images have at least 0.53 of the usual sharpness, and at most 0.34 once they are
blurred by 4 % of their width. Of the 334 nuclei one is reported, which is lit unevenly and not blurred; of 10 that were
blurred like that, all.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from holdfast.data.pixels import MOST_PIXELS
from holdfast.data.problem import Fault, Kind, Problem, problem

HUGE = Kind(
    "image-huge", "warning", f"images of more than {MOST_PIXELS // 1_000_000} million pixels, not decoded: {{count}}",
    "cut them into tiles or shrink them: one of them takes gigabytes in a loader, and Pillow refuses the largest",
)  # fmt: skip
TINY = Kind(
    "image-tiny", "warning", "images less than 10 pixels wide or high: {count}", "leave them out: most models cannot use them"
)
ASPECT = Kind(
    "image-aspect", "info", "images more than 5 times as long as wide: {count}",
    "cut them: scaled to a square they lose one direction",
)  # fmt: skip
BLANK = Kind(
    "image-blank", "warning", "images that are black, white or of one colour: {count}", "leave them out, or copy them again"
)
BLURRED = Kind(
    "image-blurred", "info", "images far less sharp than the others: {count}", "look at them: out of focus, or scaled up"
)
KINDS = (HUGE, TINY, ASPECT, BLANK)

_SMALLEST = 10
_LONGEST = 5
_FEWEST = 20  # images, below which there is no usual sharpness
_BLURRED = 0.45  # of the usual sharpness
_MOST_PER_BYTE = 2000  # no image file packs more pixels into a byte: what claims to is broken, or made to harm


def odd_size(file: str, width: int, height: int) -> Fault | None:
    """Judge the size that the header states."""
    if width * height > MOST_PIXELS:
        return Fault(HUGE.code, file, 0, f"{width} × {height}")
    if 0 < min(width, height) < _SMALLEST:
        return Fault(TINY.code, file, 0, f"{width} × {height}")
    if max(width, height) > _LONGEST * min(width, height):
        return Fault(ASPECT.code, file, 0, f"{width} × {height}")
    return None


def blur_problems(files: Sequence[str], sharpness: Sequence[float]) -> Iterator[Problem]:
    """Compare the sharpness of all images with the usual one; 0 stands for one that shows nothing."""
    known = [one for one in sharpness if one]
    if len(known) < _FEWEST:
        return
    usual = statistics.median(known)
    blurred = [(file, one) for file, one in zip(files, sharpness, strict=True) if 0 < one < _BLURRED * usual]
    if blurred:
        said = [f"{file}: {one / usual:.0%} of the usual sharpness" for file, one in blurred]
        yield problem(BLURRED, count=len(blurred), files=[file for file, _ in blurred], example=said[0], cases=said)


def is_a_bomb(width: int, height: int, size: int) -> bool:
    """Whether so many pixels cannot honestly be in so few bytes."""
    return width * height > MOST_PIXELS and width * height > _MOST_PER_BYTE * size
