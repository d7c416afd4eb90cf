"""Draws what a model of a sensor array has learned: saliency, reconstructions beside the truth, predictions, the worst events."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from holdfast.train.report import Picture, Table
from holdfast.train.sensors.array import Face, SensorArray
from holdfast.train.sensors.evaluate import Evaluator, Judged
from holdfast.train.sensors.model import FILLED, SensorModel

if TYPE_CHECKING:
    from holdfast.train.sensors.dataset import SensorData

Values = npt.NDArray[Any]
_SALIENT, _SHOWN = 256, 4  # events of the saliency; reconstructions that are drawn
_SIDE, _ROOM, _GAP, _LINE, _LETTERS, _BAR = 150, 840, 12, 16, 11, 70  # pixels; a face is at most as high as the first
_PAPER, _INK, _NONE = "#eef1f5", "#1a202c", "#c4ccd8"
_COLOURS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], float)
_DOWN = math.sqrt(3) / 2  # between two rows of hexagons, in cells
_MANY = 32  # cells of a row of a plain set


def report_of(model: SensorModel, result: Evaluator, task: Any, folder: Path) -> dict[str, object]:
    """What the report shows of an evaluation; the same pictures are written into `folder`."""
    salient = saliency(model, task.val_data(), task)
    galleries = {"Saliency": [panel(task.array, {f"saliency: {name}": some}) for name, some in salient.items()]}
    if task.targets:
        galleries["Predictions against truth"] = _scatters(result, task.targets)
    else:
        galleries["Reconstructions beside truth"] = _reconstructions(model, task)
    galleries["Worst events"] = [_event(event, task) for event in result.worst_events()]
    try:
        for title, pictures in galleries.items():
            for place, picture in enumerate(pictures, 1):
                path = folder / title.lower().replace(" ", "-") / f"{place:02d}.png"
                path.parent.mkdir(exist_ok=True)
                picture.image.save(path)
    except OSError as error:
        print(f"holdfast: pictures could not be written to {folder} ({error.strerror})", file=sys.stderr, flush=True)
    title = "Errors of the targets" if task.targets else "Errors on hidden channels, in spreads of a channel"
    tables = {title: _errors(result), "Saliency by face": _by_face(task.array, salient)}
    return {**tables, **{name: some for name, some in galleries.items() if some}}


def saliency(model: SensorModel, data: SensorData, task: Any) -> dict[str, Values]:
    """How much each output changes with each sensor: the mean size of its gradient by the normalised values of the sensor."""
    device = next(model.parameters()).device
    batch = data.__getitems__(range(min(_SALIENT, len(data))))
    values, index = batch["values"].to(device), batch["index"].to(device)
    with torch.enable_grad():
        normal, valid = model.normalise(values)
        seen = valid if task.targets else valid & ~task.hide(values, index)[:, None]
        normal = (normal * seen).detach().requires_grad_()
        outputs = model.predict(normal, seen)
        made: dict[str, Values] = {}
        for name, output in outputs.items():
            parts = output.float().abs().sum() if name == FILLED else output.float().sum()
            (gradient,) = torch.autograd.grad(parts, normal, retain_graph=True)
            made["all channels" if name == FILLED else name] = (gradient * seen).abs().sum(dim=1).mean(dim=0).cpu().numpy()
    return made


def _by_face(array: SensorArray, salient: dict[str, Values]) -> Table:
    """The fraction of the saliency that each face has, and what a sensor of it has on average."""
    rows: list[list[str | float]] = []
    for name, values in salient.items():
        whole = float(values.sum()) or 1.0
        for face in array.faces:
            own = values[face.sensors]
            rows.append([name, face.name, len(own), f"{100 * float(own.sum()) / whole:.1f} %", float(own.mean())])
    return Table(("output", "face", "sensors", "of all", "per sensor"), rows)


def _errors(result: Evaluator) -> Table:
    rows: list[list[str | float]] = []
    for name, error in result.errors.items():
        rows.append([name, error.count, error.mean, error.rmse, error.bias, error.quantile(0.5), error.quantile(0.9)])
    return Table(("", "values", "mean absolute", "RMSE", "bias", "median", "90 %"), rows)


def _reconstructions(model: SensorModel, task: Any) -> list[Picture]:
    """The first validation events: truth, what the model saw, what it made of it."""
    device = next(model.parameters()).device
    batch = task.val_data().__getitems__(range(min(_SHOWN, len(task.val_data()))))
    values, index = batch["values"].to(device), batch["index"].to(device)
    hidden = task.hide(values, index)
    with torch.no_grad():
        filled = model.normalise.invert(model(values, hidden)[FILLED].float()).cpu().numpy()
    made = []
    for place in range(len(values)):
        judged = Judged(
            0.0, int(index[place]), batch["values"][place].numpy(), hidden[place].cpu().numpy(), filled[place], filled[place]
        )
        made.append(_filled(judged, task.array))
    return made


def _event(judged: Judged, task: Any) -> Picture:
    """One of the worst events."""
    if not task.targets:
        picture = _filled(judged, task.array)
        return Picture(picture.image, f"{picture.caption}, loss {judged.loss:.4g}")
    first, parts = 0, []
    for target in task.targets:
        part = slice(first, first + target.size)
        first += target.size
        parts.append(f"{target.name} {_numbers(judged.predicted[part])}, true {_numbers(judged.truth[part])}")
    shown = {channel.name: _clean(judged.values[place], channel.invalid) for place, channel in enumerate(task.array.channels)}
    return panel(task.array, shown, f"event {judged.number}, loss {judged.loss:.4g}: {'; '.join(parts)}")


def _filled(judged: Judged, array: SensorArray) -> Picture:
    """Truth, what the model saw, and its reconstruction, of the first channel."""
    assert judged.hidden is not None
    channel = array.channels[0]
    truth, made = _clean(judged.values[0], channel.invalid), judged.predicted[0]
    seen = np.where(judged.hidden, np.nan, truth)
    rows = {f"{channel.name}: truth": truth, "seen by the model": seen, "reconstruction": made}
    finite = truth[np.isfinite(truth)]
    limits = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    error = np.abs(made - truth)[judged.hidden & np.isfinite(truth)]
    caption = f"event {judged.number}: {int(judged.hidden.sum())} hidden channels"
    return panel(array, rows, caption + (f", mean error {float(error.mean()):.3g}" if len(error) else ""), limits)


def _clean(values: Values, invalid: float | None) -> Values:
    return np.where(np.isfinite(values) & (values != np.float32(invalid if invalid is not None else np.nan)), values, np.nan)


def _numbers(values: Values) -> str:
    return ", ".join(f"{value:.4g}" for value in values.tolist())


def panel(array: SensorArray, rows: dict[str, Values], caption: str = "", limits: tuple[float, float] | None = None) -> Picture:
    """Values of all sensors, each row by a name: the faces beside each other, with a bar of colours. Grey is no value."""
    cells = [_cell(face, _ROOM // len(array.faces)) for face in array.faces]
    sizes = [_size(face, cell) for face, cell in zip(array.faces, cells, strict=True)]
    width = sum(across for across, _ in sizes) + _GAP * (len(sizes) + 1) + _BAR
    height = max(3 * _LINE, *(down for _, down in sizes)) + 2 * _LINE + _GAP
    made = Image.new("RGB", (max(width, 420), height * len(rows)), _PAPER)
    pen, font = ImageDraw.Draw(made), ImageFont.load_default(_LETTERS)
    for row, (title, values) in enumerate(rows.items()):
        finite, top = values[np.isfinite(values)], row * height
        low, high = limits or ((float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0))
        pen.text((_GAP, top + 1), title, fill=_INK, font=font)
        left = _GAP
        for face, cell, (across, _) in zip(array.faces, cells, sizes, strict=True):
            pen.text((left, top + _LINE), face.name, fill=_INK, font=font)
            _draw_face(pen, face, values, (left, top + 2 * _LINE), cell, low, high)
            left += across + _GAP
        _draw_bar(pen, font, left, top + 2 * _LINE, height - 3 * _LINE, low, high)
    return Picture(made, caption or next(iter(rows)))


def _grid(face: Face) -> Values:
    """The cells of a face in rows."""
    if face.kind != "set":
        return face.index
    rows = -(-len(face.index) // _MANY)
    return np.pad(face.index, (0, rows * -(-len(face.index) // rows) - len(face.index)), constant_values=-1).reshape(rows, -1)


def _cell(face: Face, room: int) -> float:
    """Pixels of a cell, at least 2: as large as there is room."""
    rows, columns = _grid(face).shape
    return max(2.0, min(14.0, _SIDE / int(rows), room / int(columns)))


def _size(face: Face, cell: float) -> tuple[int, int]:
    """Pixels of a face."""
    rows, columns = _grid(face).shape
    return math.ceil((columns + (0.5 if face.kind == "hex" else 0.0)) * cell), math.ceil(rows * cell)


def _draw_face(pen: Any, face: Face, values: Values, corner: tuple[int, int], cell: float, low: float, high: float) -> None:
    left, top = corner
    for (row, column), sensor in np.ndenumerate(_grid(face)):
        if sensor < 0:
            continue
        value, shift = values[sensor], cell / 2 if face.kind == "hex" and row % 2 else 0.0
        ink = _colour((value - low) / ((high - low) or 1.0)) if np.isfinite(value) else _NONE
        x, y = left + column * cell + shift, top + row * cell * (_DOWN if face.kind == "hex" else 1.0)
        if face.kind == "hex":
            middle, down = (x + cell / 2, y + cell / 2), cell / math.sqrt(3)
            turns = [math.pi * (2 * number + 1) / 6 for number in range(6)]
            pen.polygon([(middle[0] + down * math.cos(turn), middle[1] + down * math.sin(turn)) for turn in turns], fill=ink)
        else:
            pen.rectangle((x, y, x + cell - (1 if cell > 4 else 0.01), y + cell - (1 if cell > 4 else 0.01)), fill=ink)


def _draw_bar(pen: Any, font: Any, left: int, top: int, height: int, low: float, high: float) -> None:
    for step in range(max(height, 1)):
        pen.line((left, top + step, left + 10, top + step), fill=_colour(1 - step / max(height - 1, 1)))
    pen.text((left + 14, top), f"{high:.3g}", fill=_INK, font=font)
    pen.text((left + 14, top + height - _LETTERS - 2), f"{low:.3g}", fill=_INK, font=font)


def _colour(fraction: float) -> tuple[int, int, int]:
    """Dark blue for 0, yellow for 1."""
    place = min(max(float(fraction), 0.0), 1.0) * (len(_COLOURS) - 1)
    first = min(int(place), len(_COLOURS) - 2)
    mixed = _COLOURS[first] + (place - first) * (_COLOURS[first + 1] - _COLOURS[first])
    return int(mixed[0]), int(mixed[1]), int(mixed[2])


def _scatters(result: Evaluator, targets: Sequence[Any]) -> list[Picture]:
    """Predictions over the truth, a picture for each value of a target."""
    names = [f"{target.name}[{place}]" if target.size > 1 else target.name for target in targets for place in range(target.size)]
    truth, made = (np.array([point[place] for point in result.points]) for place in (1, 2))
    return [_scatter(name, truth[:, place], made[:, place]) for place, name in enumerate(names)] if len(truth) else []


def _scatter(name: str, truth: Values, made: Values) -> Picture:
    usable = np.isfinite(truth) & np.isfinite(made)
    truth, made = truth[usable], made[usable]
    both, side, margin = np.concatenate([truth, made, [0.0] if not len(truth) else []]), 300, 46
    low, high = (float(both.min()), float(both.max()))
    scale = side / ((high - low) or 1.0)
    image = Image.new("RGB", (side + 2 * margin, side + 2 * margin), _PAPER)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(_LETTERS)
    pen.rectangle((margin, margin, margin + side, margin + side), fill="white", outline=_NONE)
    pen.line((margin, margin + side, margin + side, margin), fill=_NONE)
    for x, y in zip(((truth - low) * scale).tolist(), ((made - low) * scale).tolist(), strict=True):
        pen.ellipse((margin + x - 1.5, margin + side - y - 1.5, margin + x + 1.5, margin + side - y + 1.5), fill="#3b528b")
    pen.text((margin, margin - 20), f"{name}: predicted, over the truth", fill=_INK, font=font)
    pen.text((margin, margin + side + 6), f"{low:.3g}", fill=_INK, font=font)
    pen.text((margin + side - 24, margin + side + 6), f"{high:.3g}", fill=_INK, font=font)
    error = f", mean error {float(np.abs(made - truth).mean()):.3g}" if len(truth) else ""
    return Picture(image, f"{name}: {len(truth):,} validation events{error}")
