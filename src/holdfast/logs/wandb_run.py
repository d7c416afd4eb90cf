"""Runs of Weights & Biases on disk: the folder of an offline or synced run, and its `run-*.wandb` file. wandb is not needed.

The file is a log of blocks as LevelDB writes them, and each record in it a message. Its layout is the same in all versions; the
package's own reader is not, so that it is read here.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import LogUnreadable
from holdfast.logs.json_file import numeric_fields, read_lines
from holdfast.logs.lines import lines_of
from holdfast.logs.protobuf import Field, fields, signed
from holdfast.logs.rows import Row, curves_of
from holdfast.logs.text_file import read_text
from holdfast.signals.curves import Curves

MARK = b":W&B"
_BLOCK = 32 << 10
_HEAD = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST = 8 << 20  # a record of numbers is small; the rest of a larger one is skipped
_HISTORY, _ITEM, _STEP = 2, 1, 2
_KEY, _NESTED, _TRUTH, _INTEGER, _NUMBER, _JSON, _VALUE_JSON = 1, 2, 4, 5, 6, 8, 16


def is_run_folder(folder: Path) -> bool:
    """Whether a folder is a run of W&B."""
    return (folder / "files").is_dir() and (folder.name.startswith(("run-", "offline-run-")) or _file_in(folder) is not None)


def read_wandb(path: Path, *, name: str) -> list[Curves]:
    """The run in a folder or in a `.wandb` file: its history, or failing that, what it wrote to its terminal."""
    folder = path if path.is_dir() else None
    history = path / "files" / "wandb-history.jsonl" if folder is not None else None
    if history is not None and history.is_file():
        return curves_of(read_lines(lines_of(history)), name=name, source="wandb")
    file = path if folder is None else _file_in(folder)
    runs = curves_of(_history(file), name=name, source="wandb") if file is not None else []
    if any(curves.points for curves in runs) or folder is None:
        return runs
    written = folder / "files" / "output.log"
    if not written.is_file():
        raise LogUnreadable(f"{path} has no history.", fix="wandb writes it to a run-*.wandb file in this folder")
    note = "no history found: read from the run's terminal output"
    return curves_of(read_text(lines_of(written)), name=name, source="wandb", notes=(note,))


def _file_in(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.wandb"))), None)


def _history(file: Path) -> Iterator[Row]:
    number = itertools.count()
    for record in _records(file):
        try:
            for field, value in fields(record):
                if field == _HISTORY and isinstance(value, bytes):
                    yield _row(value, next(number))
        except ValueError:
            continue


def _row(history: bytes, number: int) -> Row:
    row: dict[str, float] = {"_step": float(number)}
    for field, value in fields(history):
        if not isinstance(value, bytes):
            continue
        if field == _ITEM:
            row |= _item(list(fields(value)))
        elif field == _STEP:
            row["_step"] = float(next((step for at, step in fields(value) if at == 1), 0))
    return row


def _item(parts: list[Field]) -> dict[str, float]:
    """One number under its name; newer versions write it as it is, older ones as JSON."""
    names = [value.decode("utf-8", "replace") for field, value in parts if field in (_KEY, _NESTED) and isinstance(value, bytes)]
    name = "/".join(names)
    for field, value in parts:
        if field == _NUMBER and isinstance(value, float):
            return {name: value}
        if field == _INTEGER and isinstance(value, int):
            return {name: float(signed(value))}
        if field in (_JSON, _VALUE_JSON) and isinstance(value, bytes):
            return numeric_fields({name: json.loads(value)})
    return {}


def _records(file: Path) -> Iterator[bytes]:
    """The records of a file, up to its end or to one that is only half written."""
    try:
        with file.open("rb") as blocks:
            if not blocks.read(7).startswith(MARK):
                raise LogUnreadable(f"{file} is not a W&B file.", fix="name the run-*.wandb file or the run's folder")
            yield from _joined(blocks)
    except OSError as error:
        raise LogUnreadable(f"{file} cannot be read: {error.strerror}.", fix="check its permissions") from error


def _joined(blocks: BinaryIO) -> Iterator[bytes]:
    parts: list[bytes] = []
    for kind, data in _parts(blocks):
        if kind in (_WHOLE, _FIRST):
            parts = []
        if sum(map(len, parts)) < _LARGEST:
            parts.append(data)
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)


def _parts(blocks: BinaryIO) -> Iterator[tuple[int, bytes]]:
    while True:
        left = _BLOCK - blocks.tell() % _BLOCK
        if left < _HEAD.size:
            blocks.seek(left, 1)  # too short for a head: the next block begins
            continue
        head = blocks.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        _, length, kind = _HEAD.unpack(head)
        data = blocks.read(length)
        if len(data) < length:
            return
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            blocks.seek(_BLOCK - blocks.tell() % _BLOCK, 1)
            continue
        yield kind, data
