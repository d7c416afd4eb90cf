"""Draws an evaluation of a detector: images with predictions beside the truth, the confusion matrix, precision over recall."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from holdfast.data.visualize.pictures import colour_of, hexed
from holdfast.diagnosis.plot import plot
from holdfast.drawing.pages import rendered
from holdfast.signals.curves import Curve
from holdfast.train.detect.evaluate import Counts, DetectionResult, ImageResult, Rows
from holdfast.train.report import Picture, Table, standalone
from holdfast.units import DASH, count

LoadImage = Callable[[int], tuple[str, Image.Image]]  # from an index to the image's name and its pixels, as its boxes mean them

_ROOM = (840, 440)  # pixels of a picture: truth and predictions beside each other
_CAPTION, _GAP, _LETTERS = 18, 8, 11
_PAPER, _INK, _BAD = "#eef1f5", "#1a202c", "#dc2626"
_MOST_CLASSES = 40  # of the confusion matrix
_BACKGROUND = "background"


def report_of(result: DetectionResult, load: LoadImage, folder: Path, *, pictures: int = 6) -> dict[str, object]:
    """Everything that the report shows of an evaluation; the same pictures and drawings are written into `folder`."""
    matrix = confusion_matrix(result)
    drawings = {"Confusion matrix": matrix, "Precision and recall": precision_recall(result)}
    worst = result.worst(pictures)
    shown = {image.index for image in worst}
    others = [image for image in result.images if image.index not in shown]
    groups = {"Worst images": worst, "Validation images": others[:: -(-len(others) // pictures) or 1]}
    galleries = {title: [draw_image(image, result.classes, load) for image in images] for title, images in groups.items()}
    try:
        _write(result, matrix, galleries, folder)
    except OSError as error:
        print(f"holdfast: pictures could not be written to {folder} ({error.strerror})", file=sys.stderr, flush=True)
    classes = {f"Classes at score ≥ {result.threshold:.2f}, IoU ≥ 0.5": class_table(result)}
    return {title: content for title, content in {**classes, **drawings, **galleries}.items() if content}


def _write(result: DetectionResult, matrix: str, galleries: dict[str, list[Picture]], folder: Path) -> None:
    (folder / "confusion-matrix.svg").write_text(standalone(matrix), encoding="utf-8")
    names = [*result.classes, _BACKGROUND]
    _write_table(folder / "confusion-matrix.csv", ["", *names], zip(names, *result.confusion.T, strict=True))
    recall = np.arange(101) / 100
    precisions = [np.round(values, 6) for values in result.curves.values()]
    _write_table(folder / "precision-and-recall.csv", ["recall", *result.curves], zip(recall, *precisions, strict=True))
    for title, some in galleries.items():
        (folder / _file(title)).mkdir(exist_ok=True)
        for place, picture in enumerate(some, 1):
            picture.image.save(folder / _file(title) / f"{place:02d}.png")


def _write_table(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])


def _file(title: str) -> str:
    return title.lower().replace(" ", "-")


def draw_image(result: ImageResult, classes: Sequence[str], load: LoadImage) -> Picture:
    """The truth on the left, the predictions on the right; missed objects and wrong predictions are red."""
    try:
        name, image = load(result.index)
    except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
        return Picture(Image.new("RGB", _ROOM, _PAPER), f"image {result.index} cannot be decoded: {error}")
    labels = [f"{classes[kind]} {score:.2f}" for kind, score in zip(result.classes, result.scores, strict=True)]
    names = [classes[kind] for kind in result.target_classes]
    truth = _marked(image, result.target_boxes, result.target_classes, ~result.found, names)
    predicted = _marked(image, result.boxes, result.classes, ~result.hits, labels)
    wrong = count(int((~result.hits).sum()), "wrong prediction")
    caption = f"{name}: {int(result.found.sum())} of {count(len(result.found), 'object')} found, {wrong}"
    return Picture(_side_by_side({"truth": truth, "predictions": predicted}), caption)


def _marked(image: Image.Image, boxes: Rows, kinds: Counts, bad: npt.NDArray[np.bool_], labels: Sequence[str]) -> Image.Image:
    """The image with its boxes, as large as there is room; the bad ones last, over the others."""
    scale = min((_ROOM[0] // 2 - _GAP) / image.width, (_ROOM[1] - _CAPTION) / image.height)
    picture = image.convert("RGB").resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(_LETTERS)
    for place in sorted(range(len(boxes)), key=lambda index: bool(bad[index])):
        left, top, right, bottom = (boxes[place] * scale).tolist()
        ink = _BAD if bad[place] else hexed(colour_of(int(kinds[place])))
        draw.rectangle((min(left, right), min(top, bottom), max(left, right), max(top, bottom)), outline=ink, width=2)
        around = draw.textbbox((max(0.0, left) + 2, max(0.0, top - _LETTERS - 2)), labels[place], font=font)
        draw.rectangle((around[0] - 2, around[1] - 1, around[2] + 2, around[3] + 1), fill=ink)
        draw.text((around[0], max(0.0, top - _LETTERS - 2)), labels[place], fill="white", font=font)
    return picture


def _side_by_side(parts: dict[str, Image.Image]) -> Image.Image:
    """Pictures of one size beside each other, each under its name."""
    width, height = next(iter(parts.values())).size
    made = Image.new("RGB", (len(parts) * (width + _GAP) - _GAP, height + _CAPTION), _PAPER)
    draw, font = ImageDraw.Draw(made), ImageFont.load_default(_LETTERS)
    for place, (name, picture) in enumerate(parts.items()):
        draw.text((place * (width + _GAP) + 2, 1), name, fill=_INK, font=font)
        made.paste(picture, (place * (width + _GAP), _CAPTION))
    return made


def confusion_matrix(result: DetectionResult) -> str:
    """The counts as a drawing; of many classes those with most mistakes."""
    wrong = result.confusion.sum(0) + result.confusion.sum(1) - 2 * result.confusion.diagonal()
    kept = sorted([*np.argsort(-wrong[:-1], kind="stable")[:_MOST_CLASSES].tolist(), len(result.classes)])
    names = [*result.classes, _BACKGROUND]
    counts = result.confusion[np.ix_(kept, kept)].tolist()
    return rendered("confusion.html", names=[names[place] for place in kept], counts=counts)


def precision_recall(result: DetectionResult) -> str:
    """Precision over recall at IoU 0.5: the mean of all classes, and the classes; of many those with the lowest precision."""
    classes = sorted(result.curves.items(), key=lambda item: float(item[1].mean()))
    curves = [("all classes", np.mean(list(result.curves.values()), axis=0))] if len(classes) > 1 else []
    recall = np.arange(101)
    return plot(
        [Curve(name, recall, np.where(values < 0.01, 0.0, values)) for name, values in [*curves, *classes]],  # 0 keeps it linear
        title="precision",
        along="recall (%)",
    )


def class_table(result: DetectionResult) -> Table:
    """Each class that has objects, or was predicted: how many there are, and how many of them were found."""
    table = result.confusion
    rows: list[list[str | float]] = []
    for place, name in enumerate(result.classes):
        objects, predicted, hits = int(table[place].sum()), int(table[:, place].sum()), int(table[place, place])
        if objects or predicted:
            rows.append([name, objects, predicted, hits, _percent(hits, objects), _percent(hits, predicted)])
    return Table(("class", "objects", "predictions", "hits", "recall", "precision"), rows)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else DASH
