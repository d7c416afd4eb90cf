"""Runs of W&B on disk: records written by hand in the layout of its files, old and new; its exports."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from every_case import every_case

from holdfast.errors import LogUnreadable
from holdfast.logs.open import open_log
from holdfast.logs.search import find_logs

BLOCK = 32 << 10


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def history(step: int, row: dict[str, object], *, typed: bool) -> bytes:
    items = b""
    for name, value in row.items():
        named = b"".join(field(2, part.encode()) for part in name.split("/")) if "/" in name else field(1, name.encode())
        number = (
            b"\x31" + struct.pack("<d", value) if typed and isinstance(value, float) else field(16, json.dumps(value).encode())
        )
        items += field(1, named + number)
    return varint(1 << 3) + varint(step) + field(2, items + field(2, b"\x08" + varint(step)))


def written(records: list[bytes]) -> bytes:
    """A log of blocks: a record that does not fit is cut into first, middle and last parts."""
    found = b":W&B\xe1\xbe\x00"
    for record in records:
        begun = True
        while begun or record:
            left = BLOCK - len(found) % BLOCK
            if left < 7:
                found += b"\0" * left
                continue
            part, record = record[: left - 7], record[left - 7 :]
            kind = (1 if begun else 4) if not record else 2 if begun else 3
            found += struct.pack("<IHB", zlib.crc32(part), len(part), kind) + part
            begun = False
    return found


def run_folder(root: Path, records: list[bytes]) -> Path:
    folder = root / "wandb" / "offline-run-20240101_101010-abcd1234"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "requirements.txt").write_text("torch\n")
    (folder / "files" / "wandb-summary.json").write_text('{"loss": 0.1}')
    (folder / "logs").mkdir()
    (folder / "logs" / "debug.log").write_text("loss: 3\n")
    (folder / "run-abcd1234.wandb").write_bytes(written(records))
    return folder


@every_case("typed", [True, False], ids=["numbers", "json"])
def test_the_history_in_the_file_of_an_offline_run_is_read(typed: bool, tmp_path: Path) -> None:
    rows = [{"train/loss": 1.0 / (step + 1), "epoch": float(step // 4), "val_loss": float("nan")} for step in range(12)]
    folder = run_folder(tmp_path, [history(step, row, typed=typed) for step, row in enumerate(rows)])
    assert list(find_logs(tmp_path)) == [folder]
    (curves,) = open_log(folder)
    assert curves.train_loss is not None and curves.train_loss.epochs is not None and curves.source == "wandb"
    np.testing.assert_array_equal(curves.train_loss.values, [1.0 / (step + 1) for step in range(12)])
    assert curves.train_loss.epochs[-1] == 2 and curves.val_loss is not None and np.isnan(curves.val_loss.values).all()


def test_records_over_several_blocks_and_a_half_written_end_are_read(tmp_path: Path) -> None:
    records = [history(step, {"loss": 1.0 - step / 2000, "note": "x" * 90}, typed=True) for step in range(1000)]
    records.insert(500, field(4, b"y" * 100_000))
    path = tmp_path / "run-x.wandb"
    path.write_bytes(written(records)[:-40])
    (curves,) = open_log(path)
    assert curves.train_loss is not None and len(curves.train_loss) == 999
    assert list(curves.train_loss.steps) == list(range(999))


def test_the_history_of_older_versions_is_a_file_of_lines(tmp_path: Path) -> None:
    folder = tmp_path / "wandb" / "run-20200101_101010-abcd"
    (folder / "files").mkdir(parents=True)
    lines = [json.dumps({"loss": 1 / (step + 1), "_step": step, "_runtime": 3.0 * step}) for step in range(6)]
    (folder / "files" / "wandb-history.jsonl").write_text("\n".join(lines) + "\n")
    (curves,) = open_log(folder)
    assert curves.train_loss is not None and len(curves.train_loss) == 6


def test_a_run_without_history_is_read_from_what_it_wrote_to_its_terminal(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, [])
    with pytest.raises(LogUnreadable, match="no history"):
        open_log(folder)
    (folder / "files" / "output.log").write_text("".join(f"Epoch {n} loss: {1 / n:.3f}\n" for n in range(1, 7)))
    (curves,) = open_log(folder)
    assert curves.train_loss is not None and len(curves.train_loss) == 6 and "terminal" in curves.notes[0]


def test_an_export_holds_its_runs_side_by_side(tmp_path: Path) -> None:
    head = ["Step"]
    for run in ("swift-1", "calm - 2"):
        head += [
            f"{run} - {name}"
            for name in ("train/loss", "train/loss__MIN", "train/loss__MAX", "_step", "_step__MIN", "_step__MAX")
        ]
    text = ",".join(f'"{name}"' for name in head) + "\n"
    for step in range(5):
        text += (
            ",".join(
                f'"{value}"'
                for value in (step, 2, 2, 2, step, step, step, *(("",) * 6 if step > 2 else (3, 3, 3, step, step, step)))
            )
            + "\n"
        )
    path = tmp_path / "wandb_export.csv"
    path.write_text(text)
    first, second = open_log(path)
    assert (first.name, second.name) == ("swift-1", "calm - 2")
    assert first.train_loss is not None and second.train_loss is not None
    assert (list(first.train_loss.values), list(second.train_loss.values)) == ([2] * 5, [3] * 3)
