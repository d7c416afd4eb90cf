"""One row, event or sample of numbers as a tile: pictures, small plots of arrays, and a scale for each single number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.data.columns import Array, Chunk, Column
from holdfast.data.visualize import charts
from holdfast.data.visualize.charts import as_planes, as_series, picture_of
from holdfast.data.visualize.pictures import CARD, SOFT, fitting, put, scaled
from holdfast.data.visualize.sample import Size

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


def row_at(chunk: Chunk, position: int) -> dict[str, Any]:
    """One row of a chunk: a number, a word or an array for each column."""
    return {name: _value(column, position) for name, column in chunk.items()}


def _value(column: Column, position: int) -> Any:
    if column.counts is None:
        value = column.values[position]
        return np.array(value) if isinstance(value, np.ndarray) else value
    start = int(column.counts[:position].sum())
    return np.array(column.values[start : start + int(column.counts[position])])


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
    if isinstance(row.get(name), np.ndarray):
        return _shaped(row[name], shape)
    first = [row[key] for place in range(shape[0]) if (key := f"{name}[{place}]") in row]
    if first and len(first) == shape[0]:
        return _shaped(np.array(first), shape)
    last = [row[key] for place in range(shape[-1]) if (key := f"{name}[…, {place}]") in row]
    if last and len(last) == shape[-1]:
        return _shaped(np.stack([np.asarray(one).reshape(shape[:-1]) for one in last], axis=-1), shape)
    return None


def _shaped(values: Array, shape: tuple[int, ...]) -> Array | None:
    return values.reshape(shape) if values.size == int(np.prod(shape)) else None


Row = dict[str, Any]  # a number, an array or a word for each column
Ranges = Mapping[str, tuple[float, float]]
_LINE, _WIDE_LINE = 12, 20  # pixels of a single number, and where there are few of them
_FEW = 12
_MOST_LINES, _MOST_PLOTS = 20, 12
_PLOT = 34  # pixels of a plot, at least


def draw_row(row: Row, ranges: Ranges, bad: Collection[str], room: Size) -> Image.Image:
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
        _line(draw, (2, split + _LINE * place, room[0] - 2, split + _LINE * (place + 1)), name, row[name], ranges, bad)
    if left_out:
        put(draw, (room[0] / 2, room[1] - 1), f"and {left_out:,} more column{'s' if left_out > 1 else ''}", 10, SOFT, anchor="md")
    return made


def _few_lines(row: Row, names: list[str], ranges: Ranges, bad: Collection[str], room: Size) -> Image.Image:
    """Numbers only, and few of them: each gets more room, and the tile is no taller than they need."""
    from PIL import Image, ImageDraw

    made = Image.new("RGB", (room[0], _WIDE_LINE * max(1, len(names)) + 4), CARD)
    draw = ImageDraw.Draw(made)
    for place, name in enumerate(names):
        _line(draw, (2, _WIDE_LINE * place + 2, room[0] - 2, _WIDE_LINE * (place + 1) + 2), name, row[name], ranges, bad)
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


def _plots(draw: ImageDraw.ImageDraw, box: charts.Box, arrays: Mapping[str, Array], ranges: Ranges, bad: Collection[str]) -> None:
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
        wide = "" if columns == 3 else charts.range_of(numbers)
        inner = charts.title(draw, (across, down, across + width - 6, down + height - 4), name, wide, bad=name in bad)
        series = as_series(numbers)
        if series is not None:
            charts.lines(draw, inner, series, ranges.get(name))
        else:
            charts.bars(draw, inner, numbers.ravel(), ranges.get(name))


def _line(draw: ImageDraw.ImageDraw, box: charts.Box, name: str, value: Any, ranges: Ranges, bad: Collection[str]) -> None:
    if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        charts.scale(draw, box, name, float(value), ranges.get(name), bad=name in bad)
    else:
        charts.words(draw, box, name, str(value)[:200])
