"""Draws an evaluation of a segmentation: image, truth and prediction beside each other, for the best and the worst images."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from holdfast.train.report import Picture, Table
from holdfast.train.segment.dataset import SegmentationData
from holdfast.train.segment.evaluate import SHOWN, Evaluator, Judged
from holdfast.train.segment.metrics import Scores

_SIDE = 280  # pixels
_CAPTION, _GAP, _LETTERS = 18, 8, 11
_PAPER, _INK = "#eef1f5", "#1a202c"
_COLOURS = {"found": (22, 163, 74), "missed": (220, 38, 38), "wrong": (37, 99, 235)}
_NAMES = ("image", "truth", "prediction: green found, red missed, blue wrong")


def report_of(result: Evaluator, data: SegmentationData, folder: Path) -> dict[str, object]:
    """What the report shows of an evaluation; the same pictures are written into `folder`."""
    half = min(SHOWN, len(result.kept) // 2)
    worst, best = result.kept[: len(result.kept) - half][:SHOWN], result.kept[len(result.kept) - half :][::-1]
    groups = {"Worst images": worst, "Best images": best}
    galleries = {title: [draw(judged, data) for judged in some] for title, some in groups.items()}
    try:
        for title, pictures in galleries.items():
            for place, picture in enumerate(pictures, 1):
                path = folder / title.lower().replace(" ", "-") / f"{place:02d}.png"
                path.parent.mkdir(exist_ok=True)
                picture.image.save(path)
    except OSError as error:
        print(f"holdfast: pictures could not be written to {folder} ({error.strerror})", file=sys.stderr, flush=True)
    return {"Scores over the images": _table(result), **{title: some for title, some in galleries.items() if some}}


def _table(result: Evaluator) -> Table:
    """How each metric is distributed over the images."""
    values = np.array([result.scores[index] for index in sorted(result.scores)])
    quantiles = np.quantile(values, [0.1, 0.5, 0.9], axis=0).T.tolist()
    rows = [[name, mean, *some] for name, mean, some in zip(Scores._fields, values.mean(axis=0).tolist(), quantiles, strict=True)]
    return Table(("metric", "mean", "10 %", "median", "90 %"), rows)


def draw(judged: Judged, data: SegmentationData) -> Picture:
    """Image, truth and prediction of one image."""
    sample = data[judged.index]
    image, mask, predicted = (
        sample["image"].permute(1, 2, 0).numpy(),
        sample["mask"].numpy().astype(bool),
        judged.prediction > 127,
    )
    marked = image // 2
    for name, part in {"found": predicted & mask, "missed": mask & ~predicted, "wrong": predicted & ~mask}.items():
        marked[part] = marked[part] // 2 + np.array(_COLOURS[name], np.uint8) // 2 + 32
    parts = (image, np.repeat(mask[..., None].astype(np.uint8) * 255, 3, axis=2), marked)
    made = Image.new("RGB", (len(parts) * (_SIDE + _GAP) - _GAP, _SIDE + _CAPTION), _PAPER)
    pen, font = ImageDraw.Draw(made), ImageFont.load_default(_LETTERS)
    for place, (name, part) in enumerate(zip(_NAMES, parts, strict=True)):
        pen.text((place * (_SIDE + _GAP) + 2, 1), name, fill=_INK, font=font)
        made.paste(Image.fromarray(np.ascontiguousarray(part)).resize((_SIDE, _SIDE)), (place * (_SIDE + _GAP), _CAPTION))
    caption = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in judged.scores._asdict().items())
    return Picture(made, f"{data.images[judged.index].file}: {caption}")
