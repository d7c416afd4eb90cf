"""A sharded training that resumes on 4, 2 and 3 ranks with the same global batch: every sample once, the same weights."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from holdfast_run import run

SCRIPT = Path(__file__).parents[1] / "cluster" / "saved_digits.py"


def train(folder: Path, ranks: int, *words: str) -> None:
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    options = ("--resume", "--name", "night", "--policy", "heal")
    done = run(
        folder, *options, "--", *launch, str(SCRIPT), "out", "2", "0", "fsdp", *words, env={"OMP_NUM_THREADS": "1"}, timeout=600
    )
    assert done.returncode == 0, done.stderr


def values_of(folder: Path) -> torch.Tensor:
    return torch.tensor(json.loads((folder / "out" / "out.json").read_text())["values"])


@pytest.mark.slow
def test_resumed_on_4_then_2_then_3_ranks_every_sample_is_seen_once_an_epoch(tmp_path: Path) -> None:
    changing, same = tmp_path / "changing", tmp_path / "same"
    for folder in (changing, same):
        folder.mkdir()
    train(changing, 4, "until=4")
    train(changing, 2, "until=13")  # over the end of the first epoch
    train(changing, 3)
    rows = [json.loads(line) for file in (changing / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted({row["step"] for row in rows}) == list(range(1, 21))
    for epoch in (0, 1):
        seen = Counter(number for row in rows if row["epoch"] == epoch for number in row["samples"])
        assert seen == Counter(range(240)), f"epoch {epoch}"
    by_step = Counter({row["step"]: 0 for row in rows})
    for row in rows:
        by_step[row["step"]] += len(row["samples"])
    assert set(by_step.values()) == {24}
    train(same, 4)
    assert torch.allclose(values_of(changing), values_of(same), atol=1e-6)  # weights and moments; sums differ in their last bits
