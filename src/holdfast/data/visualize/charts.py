"""One row, event or sample of numbers as a tile: pictures, small plots of arrays, a scale for each single number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.data.columns import Array, Chunk
from holdfast.data.visualize.pictures import Plot, Tile, Value, colour_of, hexed, painted, picture_of, stretched

if TYPE_CHECKING:
    from PIL import Image


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


def as_image(planes: Array) -> Image.Image:
    """Bytes as they are; shares from 0 to 1 times 255; all else from its lowest to its highest. What is no number is magenta."""
    values = planes.astype(np.float64)
    if planes.shape[-1] == 1:
        if not _are_shares(values) and planes.dtype != np.uint8:
            return stretched(values[..., 0])
        planes = values = np.repeat(values, 3, axis=-1)
    values = values[..., :3]
    some = values[np.isfinite(values)]
    low, high = (float(some.min()), float(some.max())) if some.size else (0.0, 1.0)
    if _are_shares(values):
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255 and high > 16:
        low, high = 0.0, 255.0
    return painted(values, low, high)


def _are_shares(values: Array) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.min() >= 0 and 0.3 < finite.max() <= 1)


def as_series(values: Array) -> Array | None:
    """Channels by time of an array that is some series beside each other; None for any other."""
    if values.dtype.kind not in "iufb" or values.ndim != 2 or min(values.shape) >= _LEAST or max(values.shape) < 4:
        return None
    return values if values.shape[0] <= values.shape[1] else values.T


Ranges = Mapping[str, tuple[float, float]]
Values = dict[str, Any]  # a number, an array or a word for each column
_WIDE, _HIGH = 300, 48  # of a plot
_NOT = "#ff00ff"
_MOST_VALUES, _MOST_PLOTS, _MOST_PICTURES = 20, 12, 4


def number(value: float) -> str:
    """A number as it stands in its row: whole ones in full, since they may be ids."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e10 else f"{value:.4g}"


def row_tile(row: Values, ranges: Ranges, bad: Collection[str]) -> Tile:
    """The tile of a row. Columns that are in `bad` come first, in red; where there are too many, the others are counted."""
    pictures = {
        name: planes for name, value in row.items() if isinstance(value, np.ndarray) and (planes := as_planes(value)) is not None
    }
    rest = sorted((name for name in row if name not in pictures), key=lambda name: name not in bad)
    arrays = [name for name in rest if isinstance(row[name], np.ndarray) and row[name].dtype.kind in "iufb"]
    arrays.sort(key=lambda name: (name not in bad, not row[name].size))
    single = [name for name in rest if name not in arrays]
    if len(pictures) == 1 and not arrays and len(single) == 1:  # the one number is the label, which is shown below
        single = []
    return Tile(
        pictures=[picture_of(as_image(planes)) for planes in list(pictures.values())[:_MOST_PICTURES]],
        plots=[_plot(name, row[name].astype(np.float64), ranges.get(name), name in bad) for name in arrays[:_MOST_PLOTS]],
        values=[_value(name, row[name], ranges.get(name), name in bad) for name in single[:_MOST_VALUES]],
        more=max(0, len(single) - _MOST_VALUES) + max(0, len(arrays) - _MOST_PLOTS) + max(0, len(pictures) - _MOST_PICTURES),
    )


def _value(name: str, value: Any, usual: tuple[float, float] | None, bad: bool) -> Value:
    if not isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        return Value(name, str(value)[:200], None, False)
    finite = bool(np.isfinite(value))
    share = None
    if finite and usual is not None:
        share = (float(value) - usual[0]) / (usual[1] - usual[0]) if usual[1] > usual[0] else 0.5
    return Value(name, number(float(value)), share, bad or not finite)


def _plot(name: str, values: Array, usual: tuple[float, float] | None, bad: bool) -> Plot:
    """Series as lines, one for each channel; all else as bars from zero, one beside the other.

    The scale is that of the whole column, so that samples can be compared; it grows where a value lies beyond it.
    """
    finite = values[np.isfinite(values)]
    caption = f"{number(float(finite.min()))} … {number(float(finite.max()))}" if finite.size else "" if values.size else "empty"
    caption += f"  {values.size - finite.size} not finite" if finite.size < values.size else ""
    series = as_series(values)
    ends = np.concatenate([finite.ravel(), usual or (), (0.0,) if series is None else ()])
    low, high = (float(ends.min()), float(ends.max())) if ends.size else (0.0, 0.0)
    low, high = (low, high) if high > low else (low - 1, high + 1)
    rows = values.reshape(1, -1) if series is None else series
    drawn = [_path(row, low, high, bars=series is None) for row in rows]
    paths = [(hexed(colour_of(place)), path) for place, (path, _) in enumerate(drawn)]
    paths += [(_NOT, odd) for _, odd in drawn if odd]
    wide = max(1.0, 0.8 * _WIDE / max(1, rows.shape[1])) if series is None else 1.0
    return Plot(name, caption.strip(), paths, min(wide, 12.0), bad)


def _path(values: Array, low: float, high: float, *, bars: bool) -> tuple[str, str]:
    """What is drawn of some values, for each column of pixels from the lowest to the highest; and where some are not finite."""
    drawn, odd, pieces = "", "", np.array_split(values, max(1, min(len(values), _WIDE))) if len(values) else []
    for place, some in enumerate(pieces):
        across = (place + 0.5) * _WIDE / len(pieces)
        if not np.isfinite(some).all():
            odd += f"M{across:.1f} 0V{_HIGH}"
            continue
        ends = (min(0.0, some.min()), max(0.0, some.max())) if bars else (some.min(), some.max())
        bottom, top = ((1 - (end / 4 - low / 4) / (high / 4 - low / 4)) * _HIGH for end in ends)  # huge ones are finite
        follows = place and not bars and np.isfinite(pieces[place - 1]).all()
        drawn += f"{'L' if follows else 'M'}{across:.1f} {bottom:.1f}V{top:.1f}"
    return drawn, odd


def row_at(chunk: Chunk, position: int) -> dict[str, Any]:
    """One row of a chunk: a number, a word or an array for each column."""
    row: dict[str, Any] = {}
    for name, (values, counts) in chunk.items():
        start = position if counts is None else int(counts[:position].sum())
        value = values[position] if counts is None else values[start : start + int(counts[position])]
        row[name] = np.array(value) if isinstance(value, np.ndarray) else value
    return row


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
