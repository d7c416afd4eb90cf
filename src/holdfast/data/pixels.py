"""Decode images with Pillow, with limits, and say how they look: statistics, a perceptual hash, a thumbnail.

Only the decoders of ordinary image files are allowed, nothing larger than `MOST_PIXELS` is decoded, and only the first picture
of an animation. A JPEG is decoded at an eighth of its size: all of its data is read, so damage is seen, at a third of the time.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 64_000_000
_DECODERS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")  # MPO is opened as JPEG
_SIDE = 32
_DRAFT = 48  # pixels: what a JPEG is decoded to at least, so that the way it is scaled does not show
_FLAT = 2.0  # grey levels: with four times as much between dark and bright there is something to recognise
_BLACK, _WHITE = 16, 239  # levels that the brightest, or the darkest, of 32 × 32 pixels has at most, or at least
_AS_THEY_ARE = ("L", "RGB", "RGBA")
_WAVES = np.cos(np.pi * (2 * np.arange(_SIDE)[None] + 1) * np.arange(8)[:, None] / (2 * _SIDE)).astype(np.float32)
_CHANNELS = {"1": 1, "L": 1, "P": 1, "LA": 2, "PA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "I": 1, "F": 1}


_Seen = tuple[tuple[float, ...], tuple[float, ...], float, float, int, str, float, str]


class TooLarge(ValueError):
    """An image with more pixels than are decoded."""


class Look(NamedTuple):
    """How an image looks."""

    width: int
    height: int
    channels: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    low: float
    high: float
    look: int
    thumbnail: str
    sharpness: float = 0.0
    blank: str = ""


def opened(content: bytes) -> Image.Image:
    """An image whose pixels are not decoded yet; ValueError or OSError where that cannot be done safely."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(content), formats=_DECODERS)
    except (KeyError, UnidentifiedImageError):  # KeyError: a decoder that this Pillow was built without
        raise ValueError("no image of a kind that is known") from None
    if image.width * image.height > MOST_PIXELS:
        raise TooLarge(f"{image.width} × {image.height} pixels")
    return image


def look_at(content: bytes) -> Look:
    """Decode an image and say how it looks; a damaged one raises whatever its decoder raises."""
    image = opened(content)
    width, height = image.size
    channels = _CHANNELS.get(image.mode, 1)
    if image.format in ("JPEG", "MPO"):
        image.draft(None, (_DRAFT, _DRAFT))  # None keeps the mode
    image.load()
    if image.mode.startswith(("I", "F")):
        return Look(width, height, channels, *_of_numbers(image))
    return Look(width, height, channels, *_of_bytes(image))


def _of_bytes(image: Image.Image) -> _Seen:
    """Statistics, hash and thumbnail of an image with eight bits a channel. Pillow does what it can: it is faster here."""
    from PIL import Image

    if image.mode not in _AS_THEY_ARE:
        image = image.convert("RGB")
    if image.size != (_SIDE, _SIDE):
        gap = 2.0 if min(image.size) > 8 * _SIDE else None
        image = image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, reducing_gap=gap)
    values = np.frombuffer(image.tobytes(), np.uint8).reshape(_SIDE * _SIDE, -1).astype(np.float32)
    means, deviations = _moments(values)
    edges = image.getextrema()
    pairs: Any = edges if isinstance(edges[0], tuple) else (edges,)
    grey = np.frombuffer(image.convert("L").tobytes(), np.uint8).reshape(_SIDE, _SIDE).astype(np.float32)
    look, thumbnail, sharpness = _recognisable(grey, _FLAT)
    low, high = float(min(pair[0] for pair in pairs[:3])), float(max(pair[1] for pair in pairs[:3]))
    blank = "black" if high <= _BLACK else "white" if low >= _WHITE else "" if thumbnail else "one colour"
    return means, deviations, low, high, look, thumbnail, sharpness, blank


def _of_numbers(image: Image.Image) -> _Seen:
    """The same for an image of 16 or 32 bits, in its own units."""
    from PIL import Image

    whole = Image.fromarray(np.asarray(image).astype(np.float32))
    small = np.asarray(whole.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0))
    low, high = float(small.min()), float(small.max())
    means, deviations = _moments(small.reshape(-1, 1))
    span = high - low
    stretched: npt.NDArray[np.float32] = np.zeros_like(small)
    if span > 0 and math.isfinite(span):
        stretched = ((small - low) * (255 / span)).astype(np.float32)
    return means, deviations, low, high, *_recognisable(stretched, _FLAT), "one colour" if span == 0 else ""


def _moments(values: npt.NDArray[np.float32]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel."""
    count = len(values)
    means = [total / count for total in values.sum(axis=0, dtype=np.float64).tolist()]
    squares = np.einsum("ij,ij->j", values, values, dtype=np.float64).tolist()
    deviations = [math.sqrt(max(0.0, square / count - mean * mean)) for square, mean in zip(squares, means, strict=True)]
    return tuple(round(mean, 3) for mean in means), tuple(round(deviation, 3) for deviation in deviations)


def _recognisable(grey: npt.NDArray[np.float32], flat: float) -> tuple[int, str, float]:
    """Perceptual hash, thumbnail and sharpness.

    The signs of the slowest waves against their median; 16 × 16 grey values; and how far pixels differ from their neighbours,
    in deviations of the whole image.
    """
    waves = (_WAVES @ grey @ _WAVES.T).ravel()
    halves = grey[0::2] + grey[1::2]
    quarters = (halves[:, 0::2] + halves[:, 1::2]) * 0.25
    if not float(np.ptp(quarters)) > 4 * flat:
        return 0, "", 0.0
    bits = waves > np.sort(waves[1:])[31]
    edges = 4 * grey[1:-1, 1:-1] - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    sharpness = round(float(edges.std() / grey.std()), 3)
    return int.from_bytes(np.packbits(bits).tobytes(), "big"), quarters.astype(np.uint8).tobytes().hex(), sharpness
