"""Images that do not decode, are cut short, or are empty files."""

from __future__ import annotations

from holdfast.data.problem import Fault, Kind

UNREADABLE = Kind(
    "image-unreadable", "critical", "images that cannot be decoded: {count}",
    "replace them from the source, or leave them out: --quarantine FILE writes the list, --fix a cleaned one",
)  # fmt: skip
TRUNCATED = Kind(
    "image-truncated", "critical", "images that are cut short: {count}",
    "copy or download them again (compare sizes with the source), or leave them out with --fix",
)  # fmt: skip
EMPTY = Kind("image-empty", "critical", "image files that are empty: {count}", "copy them again, or leave them out with --fix")
KINDS = (UNREADABLE, TRUNCATED, EMPTY)

_CUT = ("truncated", "unexpected end", "premature end", "not enough image data", "buffer is not large enough")


def from_decoder(file: str, words: str, cut: str) -> Fault:
    """The fault that a decoder's words stand for; `cut` is what the header showed to be missing."""
    if cut or any(word in words.lower() for word in _CUT):
        return Fault(TRUNCATED.code, file, 0, cut or words[:200])
    return Fault(UNREADABLE.code, file, 0, words[:200])
