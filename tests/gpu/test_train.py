"""On a GPU: `holdfast train` plans its memory before the first step, and resumes."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from make_shapes import main as make_shapes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def test_the_memory_plan_counts_as_no_step_and_a_run_is_resumed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    make_shapes(tmp_path / "shapes", 8)
    small = ("--weights", "none", "--imgsz", "32", "--batch-size", "2", "--workers", "0", "--device", "0")
    for verb in (
        ("train", "detect", "--data", "shapes/data.yaml", *small, "--epochs", "1", "--name", "a"),
        ("resume", "a", "--epochs", "2", "--name", "b"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *verb], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "holdfast: memory: about" in done.stdout
    rows = list(csv.DictReader((tmp_path / "runs/b/metrics.csv").read_text().splitlines()))
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "3"), ("2", "6")]
    query = [sys.executable, "-m", "holdfast", "query", "-t", "runs/a", "--json", "SELECT count(*) AS steps FROM steps"]
    assert '"steps": 3' in subprocess.run(query, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
