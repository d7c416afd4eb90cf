"""Images that are absurdly large or small."""

from __future__ import annotations

from holdfast.data.pixels import MOST_PIXELS
from holdfast.data.problem import Fault, Kind

HUGE = Kind(
    "image-huge", "warning", f"images of more than {MOST_PIXELS // 1_000_000} million pixels, not decoded: {{count}}",
    "cut them into tiles or shrink them: one of them takes gigabytes in a loader, and Pillow refuses the largest",
)  # fmt: skip
TINY = Kind(
    "image-tiny", "warning", "images less than 10 pixels wide or high: {count}", "leave them out: most models cannot use them"
)
KINDS = (HUGE, TINY)

_SMALLEST = 10
_MOST_PER_BYTE = 2000  # no image file packs more pixels into a byte: what claims to is broken, or made to harm


def odd_size(file: str, width: int, height: int) -> Fault | None:
    """Judge the size that the header states."""
    if width * height > MOST_PIXELS:
        return Fault(HUGE.code, file, 0, f"{width} × {height}")
    if 0 < min(width, height) < _SMALLEST:
        return Fault(TINY.code, file, 0, f"{width} × {height}")
    return None


def is_a_bomb(width: int, height: int, size: int) -> bool:
    """Whether so many pixels cannot honestly be in so few bytes."""
    return width * height > MOST_PIXELS and width * height > _MOST_PER_BYTE * size
