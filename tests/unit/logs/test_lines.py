"""Files in whatever way they are written down, and of any size."""

from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from every_case import every_case

from holdfast.errors import LogUnreadable
from holdfast.logs.columns import Column
from holdfast.logs.lines import lines_of
from holdfast.logs.open import open_log
from holdfast.logs.roles import Role

TEXT = "".join(f"Epoch {n} loss: 0.{n}\n" for n in range(1, 6))
MEMORY = """
import re, sys
from pathlib import Path
from holdfast.logs.open import open_log
def peak():  # of this program; `ru_maxrss` keeps that of the parent it was forked from
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
(curves,) = open_log(Path(sys.argv[1]))
print(len(curves.train_loss), (peak() - before) // 1024)
"""


def losses(path: Path) -> list[float]:
    (curves,) = open_log(path)
    assert curves.train_loss is not None
    return list(curves.train_loss.values)


@every_case("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_log_is_unpacked_as_it_is_read(pack: object, tmp_path: Path) -> None:
    path = tmp_path / "train.log.packed"
    path.write_bytes(pack(TEXT.encode()))  # type: ignore[operator]
    assert losses(path) == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_compressed_log_that_ends_too_early_is_read_up_to_there(tmp_path: Path) -> None:
    whole = "".join(f"step {n} loss: {n * 0.37:.5f}\n" for n in range(9_000))
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(whole.encode())[:-100])
    assert 4_000 < len(losses(path)) < 9_000


@every_case("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1"])
def test_other_encodings_are_recognised(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(TEXT.replace("\n", " é\r\n").encode(encoding))
    assert losses(path) == [0.1, 0.2, 0.3, 0.4, 0.5]
    table = tmp_path / "log.csv"
    table.write_bytes("epoch,loss\n1,0.5\n2,0.25\n".encode(encoding))
    assert losses(table) == [0.5, 0.25]


def test_colours_of_a_terminal_are_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"\x1b[32mEpoch {n}\x1b[0m loss: \x1b[1;31m0.{n}\x1b[0m\n" for n in range(1, 4)))
    assert losses(path) == [0.1, 0.2, 0.3]


def test_half_a_number_at_the_end_of_a_file_that_is_being_written_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step 1 loss: 2.31\nstep 2 loss: 2.30\nstep 3 loss: 2")
    assert list(lines_of(path))[-1] == "step 3 loss: "
    assert losses(path) == [2.31, 2.30]


def test_a_long_log_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    noise = ("x" * 3000 + "\n") * 150
    with path.open("w") as file:
        for step in range(100):
            file.write(noise + f"step {step} loss: {1 / (step + 1):.4f}\n")
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    points, grown = map(int, done.stdout.split())
    assert path.stat().st_size > 40 << 20 and points == 100 and grown < 25


def test_a_long_column_is_thinned_and_keeps_what_stands_out() -> None:
    column = Column(points=1000)
    for step in range(50_000):
        value = 99.0 if step == 31_111 else float("nan") if step == 17_777 else 1.0 + (step * 7919 % 1000) / 1000
        column.add(step, value)
    curve = column.curve("loss", Role("loss", "train", "lower"))
    assert len(curve) < 2100 and column.thinned > 8
    assert np.diff(curve.steps).max() <= 4 * column.thinned  # evenly: the beginning is as dense as the end
    assert 31_111 in curve.steps and 17_777 in curve.steps
    assert abs(float(curve.finite().values.mean()) - 1.5) < 0.1


@every_case(
    ("name", "content", "word"),
    [
        ("history.pkl", b"\x80\x04\x95\x10\x00", "pickle"),
        ("history", b"\x80\x03}q\x00", "pickle"),
        ("model.pt", b"PK\x03\x04\x00\x00", "checkpoint"),
        ("plot.png", b"\x89PNG\r\n\x1a\n\x00", "image"),
        ("weights.h5", b"\x89HDF\r\n\x1a\n", "HDF5"),
        ("log.parquet", b"PAR1\x15\x04", "Parquet"),
        ("losses.npy", b"\x93NUMPY\x01\x00", "numpy"),
        ("core", b"\x7fELF\x02\x01\x01\x00\x00\x00", "binary"),
    ],
)
def test_a_file_that_is_no_log_is_refused_with_what_it_is_and_what_to_do(
    name: str, content: bytes, word: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LogUnreadable, match=word) as caught:
        open_log(tmp_path / name)
    assert caught.value.fix
