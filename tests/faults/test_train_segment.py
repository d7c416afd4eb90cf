"""Segmentation keeps what it has done when it is killed in stage 2, and trains both stages on two ranks."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast_run import run

pytest.importorskip("scipy", reason="needs pip install 'holdfast[segment]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "trainings"))
from loop_segment import draw_discs

LOOP = Path(__file__).parents[1] / "trainings" / "loop_segment.py"
OFTEN = "save_minutes=0.0001"  # after every update
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def trained(folder: Path, name: str, *words: str, before: tuple[str, ...] = ()) -> Any:
    """Train under a supervisor that restarts it; what it printed."""
    if not (folder / "discs").exists():
        draw_discs(folder / "discs")
    command = (sys.executable, *before, str(LOOP), "data=discs", OFTEN, f"final={name}.pt", *words)
    ended = run(folder, "--name", name, "--policy", "heal", "--", *command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = torch.load(folder / f"{name}.pt", weights_only=True)["model"]
    return kept


def rows(folder: Path, name: str) -> list[tuple[str, str, str]]:
    """What every epoch came to; the loss of a resumed epoch is that of its rest."""
    table = csv.DictReader((folder / "runs" / name / "metrics.csv").open())
    return [(row["epoch"], row["iou"], row["lr"]) for row in table]


@pytest.mark.slow
def test_killed_in_stage_2_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    trained(tmp_path, "whole", "batch_size=2")
    killed = trained(tmp_path, "killed", "batch_size=2", "die=17")
    step = int(killed.stdout.partition("resumed from step ")[2].partition(" ")[0])
    assert 6 < step < 17, "stage 1 has six updates"
    one, other = weights(tmp_path, "whole"), weights(tmp_path, "killed")
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert rows(tmp_path, "whole") == rows(tmp_path, "killed")


@pytest.mark.slow
def test_two_ranks_train_both_stages_and_unfreeze_layer_by_layer(tmp_path: Path) -> None:
    trained(tmp_path, "two", "device=cpu,cpu", "progressive_unfreeze=true", "deep_supervision=false", before=RANKS)
    assert len(rows(tmp_path, "two")) == 4
