"""One row, event or sample of numbers as a tile: pictures, small plots of arrays, a scale for each single number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Array, Chunk
from holdfast.data.visualize.pictures import (
    BAD,
    CARD,
    INK,
    LINE,
    SOFT,
    colour_of,
    fitted,
    fitting,
    hexed,
    painted,
    put,
    scaled,
    stretched,
    width_of,
)
from holdfast.data.visualize.sample import Size
from holdfast.units import count

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


# Arrays that are pictures: which ones are, and how they look.

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
    numbers = planes.astype(np.float64)
    if planes.shape[-1] == 1:
        if not _are_shares(numbers) and planes.dtype != np.uint8:
            return stretched(numbers[..., 0])
        planes = numbers = np.repeat(numbers, 3, axis=-1)
    numbers = numbers[..., :3]
    some = numbers[np.isfinite(numbers)]
    low, high = (float(some.min()), float(some.max())) if some.size else (0.0, 1.0)
    if _are_shares(numbers):
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255 and high > 16:
        low, high = 0.0, 255.0
    return painted(numbers, low, high)


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
    """A number as it stands in its row: whole ones in full, since they may be ids."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e10 else f"{value:.4g}"


def title(draw: ImageDraw.ImageDraw, box: Box, name: str, values: Array, *, ranged: bool, bad: bool) -> Box:
    """The name of a plot and, if it is `ranged`, the range of its values; what is left of the place for the plot."""
    left, top, right, bottom = box
    finite = values[np.isfinite(values)]
    said = f"{number(float(finite.min()))} … {number(float(finite.max()))}" if finite.size else ""
    said += f"  {values.size - finite.size} not finite" if finite.size < values.size else ""
    put(draw, (left, top), fitted(name, _TITLE, right - left), _TITLE, BAD if bad else INK)
    if ranged and width_of(name, _TITLE) + width_of(said, _SMALL) + 8 <= right - left:
        put(draw, (right, top), said.strip(), _SMALL, SOFT, anchor="ra")
    return left, top + _TITLE + 5, right, bottom


def bars(draw: ImageDraw.ImageDraw, box: Box, values: npt.NDArray[Any], usual: tuple[float, float] | None) -> None:
    """Values one beside the other: dots on stalks where they are few, bars otherwise, their envelope where they are many.

    The scale is that of the whole column, so that samples can be compared; it grows where a value lies beyond it.
    """
    left, top, right, bottom = box
    draw.rectangle(box, outline=LINE)
    if not values.size:
        put(draw, ((left + right) / 2, (top + bottom) / 2), "empty", _SMALL, SOFT, anchor="mm")
        return
    finite = np.append(0.0, np.append(values, usual or ()))  # the range with zero in it
    low, high = float(finite[np.isfinite(finite)].min()), float(finite[np.isfinite(finite)].max())
    low, high = (low, high) if high > low else (low - 1, high + 1)
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


def value_line(draw: ImageDraw.ImageDraw, box: Box, name: str, value: Any, ranges: Ranges, bad: Collection[str]) -> None:
    """The name of a value and what it is; of a number also where it lies in the usual range of its column (an arrow: beyond)."""
    left, top, right, bottom = box
    size = _SMALL if bottom - top < 16 else _LARGE
    start, end, middle = left + (right - left) * 0.38, right - 7 * size, (top + bottom) / 2
    is_number = isinstance(value, (int, float, np.integer, np.floating, np.bool_))
    finite = is_number and bool(np.isfinite(value))
    ink = BAD if is_number and (name in bad or not finite) else INK
    put(draw, (left, middle), fitted(name, size, start - left - 6), size, ink, anchor="lm")
    if not is_number:
        put(draw, (start, middle), fitted(str(value)[:200], size, right - start), size, SOFT, anchor="lm")
        return
    put(draw, (right, middle), fitted(number(float(value)), size, right - end - 6), size, ink, anchor="rm")
    draw.line((start, middle, end, middle), fill=LINE, width=1)
    if not finite or name not in ranges:
        return
    low, high = ranges[name]
    share = 0.5 if high <= low else (float(value) - low) / (high - low)
    across = start + min(max(share, 0.0), 1.0) * (end - start)
    if -0.02 <= share <= 1.02:
        draw.ellipse((across - 3, middle - 3, across + 3, middle + 3), fill=BAD if name in bad else _UP)
    else:
        tip = across + (5 if share > 1 else -5)
        draw.polygon(((tip, middle), (across, middle - 4), (across, middle + 4)), fill=BAD if name in bad else _DOWN)


def row_at(chunk: Chunk, position: int) -> dict[str, Any]:
    """One row of a chunk: a number, a word or an array for each column."""
    found: dict[str, Any] = {}
    for name, (values, counts) in chunk.items():
        start = position if counts is None else int(counts[:position].sum())
        value = values[position] if counts is None else values[start : start + int(counts[position])]
        found[name] = np.array(value) if isinstance(value, np.ndarray) else value
    return found


def put_together(row: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Arrays that were taken apart into columns, in their own shape again."""
    made: dict[str, Any] = {}
    for name, shape in shapes.items():
        whole = _whole(row, name, shape)
        if whole is not None:
            made[name] = whole
    gone = {key for name in made for key in row if key == name or key.startswith(f"{name}[")}
    return {**made, **{key: value for key, value in row.items() if key not in gone}}


def _whole(row: dict[str, Any], name: str, shape: tuple[int, ...]) -> Array | None:
    size = int(np.prod(shape))
    if isinstance(row.get(name), np.ndarray):
        return row[name].reshape(shape) if row[name].size == size else None
    for axis, word in ((0, "{}[{}]"), (-1, "{}[…, {}]")):
        keys = [word.format(name, place) for place in range(shape[axis])]
        if keys and all(key in row for key in keys):
            inner = shape[1:] if axis == 0 else shape[:-1]
            parts = [np.asarray(row[key]) for key in keys]
            return np.stack([part.reshape(inner) for part in parts], axis) if sum(part.size for part in parts) == size else None
    return None


Values = dict[str, Any]  # a number, an array or a word for each column
Ranges = Mapping[str, tuple[float, float]]
_LINE, _WIDE_LINE = 12, 20  # pixels of a single number, and where there are few of them
_FEW = 12
_MOST_LINES, _MOST_PLOTS = 20, 12
_PLOT = 34  # pixels of a plot, at least


def draw_row(row: Values, ranges: Ranges, bad: Collection[str], room: Size) -> Image.Image:
    """The tile. Columns that are in `bad` come first, in red; where there are too many, the number of the others is told."""
    from PIL import Image, ImageDraw

    pictures = {
        name: planes for name, one in row.items() if isinstance(one, np.ndarray) and (planes := as_planes(one)) is not None
    }
    rest = sorted((name for name in row if name not in pictures), key=lambda name: name not in bad)
    arrays = [name for name in rest if isinstance(row[name], np.ndarray) and row[name].dtype.kind in "iufb"]
    arrays.sort(key=lambda name: (name not in bad, not row[name].size))
    single = [name for name in rest if name not in arrays]
    if len(pictures) == 1 and not arrays and len(single) <= 1:  # the one number is the label, which is told below
        whole = picture_of(next(iter(pictures.values())))
        return scaled(whole, fitting(whole.size, room))
    if not pictures and not arrays and len(single) <= _FEW:
        return _few_lines(row, single, ranges, bad, room)
    made = Image.new("RGB", room, CARD)
    draw = ImageDraw.Draw(made)
    top = _pictures(made, pictures, bool(arrays or single), room)
    lines = single[: _lines_that_fit(len(single), room[1] - top, bool(arrays))]
    plots = arrays[:_MOST_PLOTS]
    left_out = len(single) - len(lines) + len(arrays) - len(plots)
    bottom = room[1] - (_LINE if left_out else 0)
    split = bottom - _LINE * len(lines) if plots else top
    _plots(draw, (0, top, room[0] - 1, split - 4), {name: row[name] for name in plots}, ranges, bad)
    for place, name in enumerate(lines):
        value_line(draw, (2, split + _LINE * place, room[0] - 2, split + _LINE * (place + 1)), name, row[name], ranges, bad)
    if left_out:
        put(draw, (room[0] / 2, room[1] - 1), f"and {count(left_out, 'more column')}", 10, SOFT, anchor="md")
    return made


def _few_lines(row: Values, names: list[str], ranges: Ranges, bad: Collection[str], room: Size) -> Image.Image:
    """Numbers only, and few of them: each gets more room, and the tile is no taller than they need."""
    from PIL import Image, ImageDraw

    made = Image.new("RGB", (room[0], _WIDE_LINE * max(1, len(names)) + 4), CARD)
    draw = ImageDraw.Draw(made)
    for place, name in enumerate(names):
        value_line(draw, (2, _WIDE_LINE * place + 2, room[0] - 2, _WIDE_LINE * (place + 1) + 2), name, row[name], ranges, bad)
    return made


def _lines_that_fit(many: int, height: float, with_plots: bool) -> int:
    """With plots, two fifths of the place; one line less where it must be told that some are left out."""
    fit = min(_MOST_LINES, int(height * (0.4 if with_plots else 1.0)) // _LINE)
    return fit if many <= fit else fit - 1


def _pictures(made: Image.Image, pictures: Mapping[str, Array], shared: bool, room: Size) -> float:
    """Arrays that are pictures, side by side at the top; where the rest may begin."""
    if not pictures:
        return 0
    height = int(room[1] * 0.6) if shared else room[1]
    share = room[0] // min(len(pictures), 4)
    for place, planes in enumerate(list(pictures.values())[:4]):
        picture = picture_of(planes)
        picture = scaled(picture, fitting(picture.size, (share - 4, height)))
        made.paste(picture, (share * place + (share - picture.width) // 2, (height - picture.height) // 2))
    return height + 4


def _plots(draw: ImageDraw.ImageDraw, box: Box, arrays: Mapping[str, Array], ranges: Ranges, bad: Collection[str]) -> None:
    """Arrays in a grid."""
    if not arrays:
        return
    left, top, right, bottom = box
    columns = 1 if len(arrays) <= max(1, (bottom - top) // (2 * _PLOT)) else 2 if len(arrays) <= 6 else 3
    rows = -(-len(arrays) // columns)
    width, height = (right - left + 6) / columns, (bottom - top) / rows
    for place, (name, values) in enumerate(arrays.items()):
        across, down = left + width * (place % columns), top + height * (place // columns)
        numbers = values.astype(np.float64)
        place_of = (across, down, across + width - 6, down + height - 4)
        inner = title(draw, place_of, name, numbers, ranged=columns < 3, bad=name in bad)
        series = as_series(numbers)
        if series is not None:
            lines(draw, inner, series, ranges.get(name))
        else:
            bars(draw, inner, numbers.ravel(), ranges.get(name))
