"""Small sound data sets of every format, made by a seed, and what can be put wrong in them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (64, 48)
MANY = {"train": 24, "val": 22}
NAMES = ["cat", "dog", "owl"]


def picture(seed: int, size: tuple[int, int] = SIZE, mode: str = "RGB") -> Image.Image:
    """A picture that looks like no other: soft patches of colour."""
    patches = np.random.default_rng(seed).integers(20, 235, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(patches).resize(size, Image.Resampling.BICUBIC).convert(mode)


def encoded(seed: int, kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture(seed).save(buffer, kind, **options)
    return buffer.getvalue()


def samples() -> list[tuple[str, str, int]]:
    """Split, name and seed of every sample."""
    names = [(split, number) for split, count in MANY.items() for number in range(count)]
    return [(split, f"{split}{number:02}", seed) for seed, (split, number) in enumerate(names)]


def boxes(seed: int) -> list[tuple[int, int, int, int, int]]:
    """Class, left, top, right, bottom in pixels."""
    return [(seed % 3, 4, 5, 20 + seed % 5, 21), ((seed + 1) % 3, 30, 10, 55, 40 + seed % 3)]


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def yolo_line(kind: int, left: float, top: float, right: float, bottom: float) -> str:
    width, height = SIZE
    middle = ((left + right) / 2 / width, (top + bottom) / 2 / height)
    return f"{kind} {middle[0]:.6f} {middle[1]:.6f} {(right - left) / width:.6f} {(bottom - top) / height:.6f}\n"


def yolo(folder: Path) -> None:
    for split, name, seed in samples():
        write(folder / f"images/{split}/{name}.jpg", encoded(seed, quality=85))
        write(folder / f"labels/{split}/{name}.txt", "".join(yolo_line(*box) for box in boxes(seed)))
    write(folder / "data.yaml", f"path: .\ntrain: images/train\nval: images/val\nnames: {NAMES}\n")


def voc_xml(name: str, objects: list[tuple[int, int, int, int, int]], size: tuple[int, int] = SIZE) -> str:
    parts = "".join(
        f"<object><name>{NAMES[kind]}</name><bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax>"
        f"<ymax>{bottom}</ymax></bndbox></object>\n"
        for kind, left, top, right, bottom in objects
    )
    stated = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    return f"<annotation>\n<filename>{name}.jpg</filename>{stated}\n{parts}</annotation>\n"


def voc(folder: Path) -> None:
    lists: dict[str, list[str]] = {}
    for split, name, seed in samples():
        write(folder / f"JPEGImages/{name}.jpg", encoded(seed, quality=85))
        write(folder / f"Annotations/{name}.xml", voc_xml(name, boxes(seed)))
        lists.setdefault(split, []).append(name)
    for split, some in lists.items():
        write(folder / f"ImageSets/Main/{split}.txt", "\n".join(some) + "\n")
    write(folder / "classes.txt", "\n".join(NAMES))


def coco(folder: Path) -> None:
    for split in MANY:
        images, annotations = [], []
        for _, name, seed in [one for one in samples() if one[0] == split]:
            write(folder / f"{split}/{name}.jpg", encoded(seed, quality=85))
            images.append({"id": seed, "file_name": f"{name}.jpg", "width": SIZE[0], "height": SIZE[1]})
            for kind, left, top, right, bottom in boxes(seed):
                row = {"image_id": seed, "category_id": kind + 1, "bbox": [left, top, right - left, bottom - top]}
                annotations.append({"id": len(annotations), **row})
        kinds = [{"id": number + 1, "name": name} for number, name in enumerate(NAMES)]
        content = {"images": images, "annotations": annotations, "categories": kinds}
        write(folder / f"annotations/instances_{split}.json", json.dumps(content))


def image_folder(folder: Path) -> None:
    for split, name, seed in samples():
        write(folder / f"{split}/{NAMES[seed % 3]}/{name}.png", encoded(seed, "PNG"))


def mask(seed: int, values: tuple[int, ...] = (255,)) -> Image.Image:
    width, height = SIZE
    pixels = np.zeros((height, width), np.uint8)
    for place, value in enumerate(values):
        pixels[5 + seed % 4 : 20, 4 + 20 * place : 18 + 20 * place] = value
    return Image.fromarray(pixels)


def masks(folder: Path, values: tuple[int, ...] = (255,)) -> None:
    for split, name, seed in samples():
        write(folder / f"images/{split}/{name}.png", encoded(seed, "PNG"))
        buffer = io.BytesIO()
        mask(seed, values).save(buffer, "PNG")
        write(folder / f"masks/{split}/{name}.png", buffer.getvalue())


def class_masks(folder: Path) -> None:
    masks(folder, (1, 2))
    write(folder / "classes.txt", "background\ncat\ndog\n")


ROWS = {"train": 300, "val": 200}


def columns(split: str) -> dict[str, np.ndarray]:
    """Columns of a sound table, shuffled and without a repeated row."""
    chance = np.random.default_rng(list(ROWS).index(split))
    rows = ROWS[split]
    return {
        "a": chance.normal(size=rows),
        "b": chance.normal(10, 3, rows),
        "n": chance.integers(0, 50, rows).astype(np.int16),
        "label": chance.permutation(np.arange(rows) % 3),
    }


def write_csv(folder: Path, split: str, table: dict[str, np.ndarray]) -> None:
    lines = [
        ",".join(table),
        *(",".join(map(str, row)) for row in zip(*(column.tolist() for column in table.values()), strict=True)),
    ]
    write(folder / f"{split}.csv", "\n".join(lines) + "\n")


def write_parquet(folder: Path, split: str, table: dict[str, np.ndarray]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / f"{split}.parquet")


def write_npz(folder: Path, split: str, table: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{split}.npz", **table)


def write_npy(folder: Path, split: str, table: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, column in table.items():
        np.save(folder / f"{name}_{split}.npy", column)


def write_root(folder: Path, split: str, table: dict[str, np.ndarray]) -> None:
    import awkward as ak
    import uproot

    folder.mkdir(parents=True, exist_ok=True)
    numbers = table["n"].astype(float)  # what is jagged follows from it, so that a repeated row is repeated as a whole
    counts = (numbers % 4).astype(int)
    jagged = ak.unflatten(np.sin(np.repeat(numbers, counts) * 0.37), counts)
    with uproot.recreate(folder / f"{split}.root") as file:
        content = {**table, "hits": jagged, "fixed": np.stack([np.cos(numbers), np.sin(numbers), numbers / 7], axis=1)}
        file.mktree(
            "tree", {name: ak.type(ak.Array(one)).content if name == "hits" else _branch(one) for name, one in content.items()}
        )
        file["tree"].extend(content)


def _branch(values: np.ndarray) -> np.dtype:
    return np.dtype((values.dtype, values.shape[1:]))


def write_jsonl(folder: Path, split: str, table: dict[str, np.ndarray]) -> None:
    """NaN is null, as in all JSON."""
    rows = zip(*(column.tolist() for column in table.values()), strict=True)
    lines = (
        json.dumps({name: value if value == value else None for name, value in zip(table, row, strict=True)}) for row in rows
    )
    write(folder / f"{split}.jsonl", "\n".join(lines) + "\n")


TABLES: dict[str, Callable[[Path, str, dict[str, np.ndarray]], None]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "npz": write_npz,
    "npy": write_npy,
    "root": write_root,
}


def table(folder: Path, kind: str, change: Callable[[dict[str, dict[str, np.ndarray]]], None] | None = None) -> None:
    """A table of a kind, with something changed before it is written."""
    content = {split: columns(split) for split in ROWS}
    if change:
        change(content)
    for split, one in content.items():
        TABLES[kind](folder, split, one)


def text(folder: Path) -> None:
    chance = np.random.default_rng(0)
    words = ["whale", "sea", "ship", "captain", "storm", "harbour", "sail", "night", "fish", "net"]
    for split, lines in (("train", 200), ("val", 50)):
        written = [" ".join(chance.choice(words, 9)) for _ in range(lines)]
        write(folder / f"{split}.txt", "\n".join(written) + "\n")
    write(folder / "vocab.txt", "[UNK]\n" + "\n".join(words) + "\n")
