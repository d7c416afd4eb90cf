"""`holdfast visualize --augmented`: a sheet of training images as the model gets them, with their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from holdfast.data.visualize.pictures import colour_of, hexed
from holdfast.errors import StorageError, UsageError
from holdfast.train.detect.augment import Augmentation
from holdfast.train.detect.boxes import open_boxes
from holdfast.train.detect.dataset import DetectionData, Sample

_IMGSZ = 640  # as `holdfast train detect` has it
_TILE, _COLUMNS, _GAP, _LINE, _LETTERS = 320, 4, 10, 20, 13
_PAPER, _INK = "#eef1f5", "#1a202c"
_MADE_BY = "holdfast visualize --augmented"  # stands in every file: one without it is somebody else's, and never written over
_ELSEWHERE = "name another file: --output FILE.png"


def draw_augmented(path: str, *, samples: int, seed: int, output: Path | None, format: str | None = None) -> tuple[Path, int]:
    """Draw training images with the usual augmentation; the file, and how many it shows."""
    data = open_boxes(path, format)
    file = output if output is not None else Path(f"{data.root.name or 'data'}-augmented.png")
    _refuse_place(file, data.root)
    training = DetectionData(data, "train", imgsz=_IMGSZ, augmentation=Augmentation(), seed=seed)
    chosen = np.random.default_rng(seed).permutation(len(training))[:samples].tolist()
    tiles = [(training.file(index), draw_sample(training[index])) for index in chosen]
    _write(sheet(tiles, training.classes), file)
    return file, len(tiles)


def draw_sample(sample: Sample, side: int = _TILE) -> Image.Image:
    """The image of a sample with its boxes."""
    image = Image.fromarray(sample["image"].permute(1, 2, 0).contiguous().numpy()).resize((side, side))
    draw = ImageDraw.Draw(image)
    middle, extent = sample["boxes"].split(2, dim=1)
    corners = torch.cat([middle - extent / 2, middle + extent / 2], dim=1) * side
    for box, kind in zip(corners.tolist(), sample["classes"].tolist(), strict=True):
        draw.rectangle(box, outline=hexed(colour_of(kind)), width=2)
    return image


def sheet(tiles: Sequence[tuple[str, Image.Image]], classes: Sequence[str]) -> Image.Image:
    """Pictures in rows, each above its name; the first line says which colour is which class."""
    columns, rows, step = min(_COLUMNS, len(tiles)), -(-len(tiles) // _COLUMNS), _TILE + _LINE + _GAP
    made = Image.new("RGB", (columns * (_TILE + _GAP) + _GAP, rows * step + _LINE + 2 * _GAP), _PAPER)
    draw, font = ImageDraw.Draw(made), ImageFont.load_default(_LETTERS)
    across = float(_GAP)
    for place, name in enumerate(classes):
        draw.rectangle((across, _GAP + 3, across + 10, _GAP + 13), fill=hexed(colour_of(place)))
        draw.text((across + 15, _GAP), name, fill=_INK, font=font)
        across += 30 + draw.textlength(name, font=font)
    for place, (name, tile) in enumerate(tiles):
        left, top = _GAP + place % _COLUMNS * (_TILE + _GAP), _LINE + 2 * _GAP + place // _COLUMNS * step
        made.paste(tile, (left, top))
        while draw.textlength(name, font=font) > _TILE:
            name = f"…{name[2:]}"
        draw.text((left, top + _TILE + 2), name, fill=_INK, font=font)
    return made


def _refuse_place(file: Path, data: Path) -> None:
    """Never among the data, and never over a file that was not made here."""
    if data in file.resolve().parents:
        raise UsageError(f"{file} is inside the data.", fix=_ELSEWHERE)
    if file.exists() and not (file.is_file() and _MADE_BY.encode() in file.read_bytes()[:2048]):
        raise UsageError(f"{file} is there and was not made by {_MADE_BY}.", fix=_ELSEWHERE)


def _write(image: Image.Image, file: Path) -> None:
    about = PngImagePlugin.PngInfo()
    about.add_text("Software", _MADE_BY)
    new = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(new, "PNG", pnginfo=about, compress_level=4)
        new.replace(file)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror or error}.", fix=_ELSEWHERE) from None
