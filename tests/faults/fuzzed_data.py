"""Damaged files: bytes of sound ones changed at random, as bad disks, broken copies and strangers change them."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import made_data as made


def mutated(content: bytes, chance: random.Random) -> bytes:
    """One to a few changes: flipped, cut, doubled, filled, or a number made huge."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        place = chance.randrange(max(len(data), 1))
        way = chance.randrange(7)
        if way == 0 and data:
            data[place] ^= 1 << chance.randrange(8)
        elif way == 1:
            del data[place:]
        elif way == 2:
            del data[place : place + chance.randrange(1, 40)]
        elif way == 3:
            data[place:place] = data[place : place + chance.randrange(1, 200)]
        elif way == 4:
            data[place : place + 4] = chance.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0"))
        elif way == 5:
            data[place : place + 8] = chance.randbytes(8)
        else:
            data[place : place + 1] = chance.choice(
                (b"9" * 30, b"nan", b"-1e308", b"<" * 50, b"[" * 60, b"&lol;", b"../" * 9, b"\0")
            )
    return bytes(data)


def image_seeds() -> list[tuple[str, bytes]]:
    picture = made.picture(5)
    seeds = []
    for kind, ending in (("JPEG", "jpg"), ("PNG", "png"), ("GIF", "gif"), ("BMP", "bmp"), ("TIFF", "tif"), ("WEBP", "webp")):
        buffer = io.BytesIO()
        picture.save(buffer, kind)
        seeds.append((f"{kind.lower()}.{ending}", buffer.getvalue()))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", progressive=True)
    seeds.append(("progressive.jpg", buffer.getvalue()))
    buffer = io.BytesIO()
    picture.save(buffer, "TIFF", compression="tiff_lzw")
    return [*seeds, ("lzw.tif", buffer.getvalue())]


def yolo_with(folder: Path, count: int, seed: int) -> None:
    """A YOLO set in which images, labels and data.yaml are damaged."""
    chance = random.Random(seed)
    made.yolo(folder)
    seeds = image_seeds()
    for number in range(count):
        name, content = chance.choice(seeds)
        (folder / f"images/train/z{number}_{name}").write_bytes(mutated(content, chance))
        label = "".join(made.yolo_line(*box) for box in made.boxes(number)).encode()
        (folder / f"labels/train/z{number}_{name.split('.')[0]}.txt").write_bytes(mutated(label, chance))
    described = folder / "data.yaml"
    if chance.random() < 0.5:
        described.write_bytes(mutated(described.read_bytes(), chance))


def voc_with(folder: Path, count: int, seed: int) -> None:
    chance = random.Random(seed)
    made.voc(folder)
    for number in range(count):
        content = made.voc_xml("x", made.boxes(number)).encode()
        if number % 4 == 0:
            content = b'<!DOCTYPE annotation [<!ENTITY lol "haha">]>' + content
        (folder / f"Annotations/z{number}.xml").write_bytes(mutated(content, chance))
        (folder / f"JPEGImages/z{number}.jpg").write_bytes(made.encoded(number, quality=60))
    with (folder / "ImageSets/Main/train.txt").open("a") as file:
        file.writelines(f"z{number}\n" for number in range(count))


def coco_files(folder: Path, count: int, seed: int) -> Iterator[Path]:
    """COCO sets, one after the other, whose JSON is damaged."""
    chance = random.Random(seed)
    made.coco(folder)
    path = folder / "annotations/instances_train.json"
    sound = path.read_bytes()
    for _ in range(count):
        path.write_bytes(mutated(sound, chance))
        yield folder


def single_files(folder: Path, count: int, seed: int) -> Iterator[Path]:
    """ROOT, NumPy, CSV and Parquet files, one after the other, each damaged."""
    chance = random.Random(seed)
    sound = []
    for kind in ("root", "npz", "npy", "csv", "parquet"):
        made.table(folder / "sound", kind)
    for ending in (".root", ".root", ".npz", ".npy", ".csv", ".parquet"):
        path = next(one for one in sorted((folder / "sound").iterdir()) if one.suffix == ending)
        sound.append((ending, path.read_bytes()))
    for number in range(count):
        ending, content = sound[number % len(sound)]
        path = folder / f"damaged{ending}"
        path.write_bytes(mutated(content, chance))
        yield path
