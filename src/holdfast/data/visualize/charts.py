"""Small plots of the values of one sample: bars, lines, dots on a scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from holdfast.data.visualize.pictures import BAD, INK, LINE, SOFT, colour_of, fitted, hexed, put, stretched, width_of

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


# Arrays that are pictures: which ones are, and how they look.

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


Box = tuple[float, float, float, float]
_TITLE, _SMALL, _LARGE = 11, 10, 12
_UP, _DOWN, _NOT = "#2b6cb0", "#dd6b20", "#ff00ff"
_FEW = 24  # values that are drawn as dots on stalks


def number(value: float) -> str:
    """A number in few letters."""
    if float(value).is_integer() and abs(value) < 1e10:
        return f"{value:.0f}"
    return f"{value:.4g}"


def title(draw: ImageDraw.ImageDraw, box: Box, name: str, said: str, *, bad: bool) -> Box:
    """The name of a plot and its range; what is left of the place for the plot."""
    left, top, right, bottom = box
    both = width_of(name, _TITLE) + width_of(said, _SMALL) + 8 <= right - left
    put(draw, (left, top), fitted(name, _TITLE, right - left), _TITLE, BAD if bad else INK)
    if both:
        put(draw, (right, top), said, _SMALL, SOFT, anchor="ra")
    return left, top + _TITLE + 5, right, bottom


def range_of(values: npt.NDArray[Any]) -> str:
    """The range of some values in words."""
    finite = values[np.isfinite(values)]
    odd = values.size - finite.size
    said = f"{number(float(finite.min()))} … {number(float(finite.max()))}" if finite.size else ""
    return f"{said}  {odd} not finite".strip() if odd else said


def bars(draw: ImageDraw.ImageDraw, box: Box, values: npt.NDArray[Any], usual: tuple[float, float] | None) -> None:
    """Values one beside the other: dots on stalks where they are few, bars otherwise, their envelope where they are many.

    The scale is that of the whole column, so that samples can be compared; it grows where a value lies beyond it.
    """
    left, top, right, bottom = box
    draw.rectangle(box, outline=LINE)
    if not values.size:
        put(draw, ((left + right) / 2, (top + bottom) / 2), "empty", _SMALL, SOFT, anchor="mm")
        return
    low, high = _edges(np.append(values, usual or ()))
    zero = _down(0.0, low, high, top, bottom)
    draw.line((left, zero, right, zero), fill=SOFT)
    step = (right - left - 4) / len(values)
    if step < 2:
        _envelope(draw, box, values, low, high)
        return
    for place, value in enumerate(values.tolist()):
        across = left + 2 + step * (place + 0.5)
        if not np.isfinite(value):
            draw.line((across, top + 1, across, bottom - 1), fill=_NOT, width=max(1, round(step * 0.6)))
            continue
        ink, end = _UP if value >= 0 else _DOWN, _down(value, low, high, top, bottom)
        if len(values) <= _FEW:
            draw.line((across, zero, across, end), fill=ink, width=2)
            draw.ellipse((across - 3, end - 3, across + 3, end + 3), fill=ink)
        else:
            half = max(0.5, step * 0.4)
            draw.rectangle((across - half, min(zero, end), across + half, max(zero, end)), fill=ink)


def _edges(values: npt.NDArray[Any]) -> tuple[float, float]:
    """The range with zero in it, and some room."""
    finite = values[np.isfinite(values)]
    low, high = (min(0.0, float(finite.min())), max(0.0, float(finite.max()))) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 1, high + 1)


def _down(value: float, low: float, high: float, top: float, bottom: float) -> float:
    share = (value - low) / (high - low)  # both may be huge: never their sum
    return bottom - 4 - share * (bottom - top - 8)


def _envelope(draw: ImageDraw.ImageDraw, box: Box, values: npt.NDArray[Any], low: float, high: float) -> None:
    """For each column of pixels the lowest and the highest value in it."""
    left, top, right, bottom = box
    columns = max(1, int(right - left - 4))
    for place, some in enumerate(np.array_split(values, columns)):
        finite = some[np.isfinite(some)]
        across = left + 2 + place
        if finite.size < some.size:
            draw.line((across, top + 1, across, bottom - 1), fill=_NOT)
        elif finite.size:
            ends = [
                _down(value, low, high, top, bottom) for value in (max(0.0, float(finite.max())), min(0.0, float(finite.min())))
            ]
            draw.line((across, *(ends[0], across, ends[1])), fill=_UP)


def lines(draw: ImageDraw.ImageDraw, box: Box, channels: npt.NDArray[Any], usual: tuple[float, float] | None) -> None:
    """Series, one line for each channel, on one scale, which is that of the whole column as far as it reaches."""
    left, top, right, bottom = box
    draw.rectangle(box, outline=LINE)
    finite = channels[np.isfinite(channels)]
    if not finite.size:
        return
    ends = np.append(finite, usual or ())
    low, high = float(ends.min()), float(ends.max())
    low, high = (low, high) if high > low else (low - 1, high + 1)
    step = (right - left - 4) / max(channels.shape[1] - 1, 1)
    for place, channel in enumerate(channels):
        ink = hexed(colour_of(place))
        points: list[tuple[float, float]] = []
        for across, value in enumerate(channel.tolist()):
            if np.isfinite(value):
                points.append((left + 2 + step * across, _down(value, low, high, top, bottom)))
                continue
            draw.line((left + 2 + step * across, top + 1, left + 2 + step * across, bottom - 1), fill=_NOT)
            _line(draw, points, ink)
            points = []
        _line(draw, points, ink)


def _line(draw: ImageDraw.ImageDraw, points: list[tuple[float, float]], ink: str) -> None:
    if len(points) > 1:
        draw.line(points, fill=ink, width=1)


def scale(draw: ImageDraw.ImageDraw, box: Box, name: str, value: float, usual: tuple[float, float] | None, *, bad: bool) -> None:
    """One number: its name, where it lies in the usual range of its column (an arrow: beyond it), and what it is."""
    left, top, right, bottom = box
    size = _SMALL if bottom - top < 16 else _LARGE
    middle, said = (top + bottom) / 2, number(value) if np.isfinite(value) else str(value)
    odd = bad or not np.isfinite(value)
    start, end = left + (right - left) * 0.38, right - 7 * size
    put(draw, (left, middle), fitted(name, size, start - left - 6), size, BAD if odd else INK, anchor="lm")
    put(draw, (right, middle), fitted(said, size, right - end - 6), size, BAD if odd else INK, anchor="rm")
    draw.line((start, middle, end, middle), fill=LINE, width=1)
    if usual is None or not np.isfinite(value):
        return
    low, high = usual
    share = 0.5 if high <= low else (value - low) / (high - low)
    across, ink = start + min(max(share, 0.0), 1.0) * (end - start), BAD if bad else _UP
    if -0.02 <= share <= 1.02:
        draw.ellipse((across - 3, middle - 3, across + 3, middle + 3), fill=ink)
    else:
        tip = across + (5 if share > 1 else -5)
        draw.polygon(((tip, middle), (across, middle - 4), (across, middle + 4)), fill=BAD if bad else _DOWN)


def words(draw: ImageDraw.ImageDraw, box: Box, name: str, said: str) -> None:
    """A value that is no number."""
    left, top, right, bottom = box
    size = _SMALL if bottom - top < 16 else _LARGE
    start, middle = left + (right - left) * 0.38, (top + bottom) / 2
    put(draw, (left, middle), fitted(name, size, start - left - 6), size, INK, anchor="lm")
    put(draw, (start, middle), fitted(said, size, right - start), size, SOFT, anchor="lm")
