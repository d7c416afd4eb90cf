"""Predictions go to disk as they come: nothing is lost, nothing piles up in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from every_case import every_case

import holdfast
from holdfast.errors import DiskFull, UsageError


def read(folder: Path) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = parquet.read_table(folder).to_pydict()
    return columns


def test_every_row_comes_back_in_order_from_tensors_arrays_and_lists(tmp_path: Path) -> None:
    with holdfast.PredictionWriter(tmp_path / "p", buffer_mb=0.001) as writer:
        for number in range(10):
            ids = np.arange(number * 50, number * 50 + 50)
            score = torch.from_numpy(ids / 7).to(torch.bfloat16 if number < 0 else torch.float32).requires_grad_()
            writer.write(event=ids, score=score, box=torch.ones(50, 4) * number, name=[f"n{i}" for i in ids])
    back = read(tmp_path / "p")
    assert back["event"] == list(range(500))
    assert np.allclose(np.array(back["score"], dtype=float), np.arange(500) / 7)
    assert back["box"][499] == [9.0] * 4
    assert back["name"][123] == "n123"
    assert writer.rows == 500
    assert len(list((tmp_path / "p").glob("*.parquet"))) > 3


def test_a_tensor_that_the_loop_reuses_is_written_as_it_was(tmp_path: Path) -> None:
    score = torch.zeros(4)
    with holdfast.PredictionWriter(tmp_path / "p") as writer:
        writer.write(score=score)
        score.fill_(9)
    assert read(tmp_path / "p")["score"] == [0.0] * 4


def test_half_precision_of_a_gpu_model_can_be_written(tmp_path: Path) -> None:
    with holdfast.PredictionWriter(tmp_path / "p") as writer:
        writer.write(score=torch.tensor([0.5, 1.5], dtype=torch.bfloat16))
    assert read(tmp_path / "p")["score"] == [0.5, 1.5]


def test_an_error_in_the_loop_loses_no_row_that_was_written(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), holdfast.PredictionWriter(tmp_path / "p") as writer:
        writer.write(score=[1.0, 2.0])
        _ = 1 // 0
    assert read(tmp_path / "p")["score"] == [1.0, 2.0]


def test_a_killed_process_leaves_whole_files(tmp_path: Path) -> None:
    script = (
        "import os, signal, numpy as np, holdfast\n"
        "writer = holdfast.PredictionWriter('p', buffer_mb=0.1)\n"
        "for i in range(40): writer.write(x=np.full(1000, i))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == -9
    back = read(tmp_path / "p")["x"]
    assert back == sorted(back, key=int)  # type: ignore[call-overload]
    assert len(back) >= 26_000


def test_an_older_result_is_not_written_over_unless_asked(tmp_path: Path) -> None:
    with holdfast.PredictionWriter(tmp_path / "p") as writer:
        writer.write(x=[1])
    with pytest.raises(UsageError, match="already"):
        holdfast.PredictionWriter(tmp_path / "p")
    with holdfast.PredictionWriter(tmp_path / "p", overwrite=True) as writer:
        writer.write(x=[2])
    assert read(tmp_path / "p")["x"] == [2]


@every_case(
    ("second", "said"),
    [
        ({"x": [1.0], "y": [1, 2]}, "different length"),
        ({"x": [1.0]}, "'y'"),
        ({"x": [[1.0, 2.0]], "y": [1]}, "'x'"),
        ({}, "no column"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_in_words(tmp_path: Path, second: dict[str, object], said: str) -> None:
    writer = holdfast.PredictionWriter(tmp_path / "p")
    writer.write(x=[1.0], y=[1])
    with pytest.raises(UsageError, match=said):
        writer.write(**second)
    writer.close()
    assert read(tmp_path / "p") == {"x": [1.0], "y": [1]}


def test_two_ranks_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with holdfast.PredictionWriter(tmp_path / "p") as writer:
            writer.write(rank=[int(rank)])
    assert sorted(read(tmp_path / "p")["rank"]) == [0, 1]  # type: ignore[type-var]


def test_a_full_disk_is_told_in_words_and_keeps_what_was_written(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        writer = holdfast.PredictionWriter(small / "p", buffer_mb=0.3)
        with pytest.raises(DiskFull, match="no room"):
            for seed in range(40):
                writer.write(x=np.random.default_rng(seed).normal(size=10_000))
        assert len(read(small / "p")["x"]) >= 40_000
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_memory_stays_bounded_however_many_rows_come(tmp_path: Path) -> None:
    script = (
        "import numpy as np, pathlib, holdfast\n"
        "writer = holdfast.PredictionWriter('p', buffer_mb=8)\n"
        "def some(n):\n"
        "    for i in range(n): writer.write(event=np.arange(50_000), energy=np.random.rand(50_000).astype('f4'))\n"
        "    return int(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]) / 1024\n"
        "early = some(20)\n"
        "late = some(60)\n"
        "writer.close()\n"
        "print(early, late)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
    early, late = map(float, done.stdout.split())
    assert late < 300
    assert late - early < 20  # megabytes; the 3 million rows between are 36
