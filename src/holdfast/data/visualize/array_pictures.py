"""Arrays that are pictures: which ones are, and how they look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from holdfast.data.visualize.pictures import stretched

if TYPE_CHECKING:
    from PIL import Image

Array = npt.NDArray[Any]
_LEAST = 8  # pixels of a side; what is narrower is a series of channels
_CHANNELS = 4


def as_planes(values: Array) -> Array | None:
    """Height, width and 1, 3 or 4 channels of an array that is a picture; None for any other."""
    if values.dtype.kind not in "iufb":
        return None
    while values.ndim > 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim == 2 and min(values.shape) >= _LEAST:
        return values[..., None]
    if values.ndim != 3:
        return None
    if values.shape[0] <= _CHANNELS and min(values.shape[1:]) >= 4:
        values = np.moveaxis(values, 0, -1)
    elif values.shape[-1] > _CHANNELS or min(values.shape[:2]) < 4:
        return values.mean(axis=0)[..., None] if min(values.shape[1:]) >= _LEAST else None
    return values if values.shape[-1] in (1, 3, 4) else values[..., :1]


def picture_of(planes: Array) -> Image.Image:
    """Bytes as they are; shares from 0 to 1 times 255; all else from its lowest to its highest. What is no number is magenta."""
    from PIL import Image

    numbers = planes.astype(np.float64)
    if planes.shape[-1] == 1:
        if not _are_shares(numbers) and planes.dtype != np.uint8:
            return stretched(numbers[..., 0])
        planes = numbers = np.repeat(numbers, 3, axis=-1)
    numbers = numbers[..., :3]
    finite = np.isfinite(numbers)
    some = numbers[finite]
    low, high = (float(some.min()), float(some.max())) if some.size else (0.0, 1.0)
    if _are_shares(numbers):
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255 and high > 16:
        low, high = 0.0, 255.0
    span = high - low if high > low else 1.0
    pixels = (np.clip((np.where(finite, numbers, low) - low) / span, 0, 1) * 255).astype(np.uint8)
    pixels[~finite.all(axis=-1)] = (255, 0, 255)
    return Image.fromarray(pixels)


def _are_shares(numbers: Array) -> bool:
    finite = numbers[np.isfinite(numbers)]
    return bool(finite.size and finite.min() >= 0 and 0.3 < finite.max() <= 1)


def as_series(values: Array) -> Array | None:
    """Channels by time of an array that is some series beside each other; None for any other."""
    if values.dtype.kind not in "iufb" or values.ndim != 2 or min(values.shape) >= _LEAST or max(values.shape) < 4:
        return None
    return values if values.shape[0] <= values.shape[1] else values.T
