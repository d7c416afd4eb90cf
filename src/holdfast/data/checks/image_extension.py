"""Images whose content is of another kind than their ending says."""

from __future__ import annotations

from holdfast.data.image_header import fits_ending
from holdfast.data.listing import suffix
from holdfast.data.problem import Fault, Kind

EXTENSION = Kind(
    "image-extension", "warning", "images of another kind than their ending says: {count}",
    "rename them: some loaders choose the decoder by the ending and fail",
)  # fmt: skip
KINDS = (EXTENSION,)


def wrong_extension(file: str, kind: str) -> Fault | None:
    """Compare the kind that the first bytes show with the ending."""
    if fits_ending(kind, suffix(file)):
        return None
    return Fault(EXTENSION.code, file, 0, f"its content is {kind.upper()}")
