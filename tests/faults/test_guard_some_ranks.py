"""Two ranks share a model, a third one of the same world does not train: the two agree between themselves, nobody waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from watched_training import SITE, Process, Recorded

from holdfast.signals.run_folder import RunFolder

VICTIM = Path(__file__).parents[1] / "victims/ranks_of_which_some_train.py"
BAD = 3


@pytest.mark.parametrize("kind", ["fsdp2", pytest.param("fsdp1", marks=pytest.mark.slow)])
def test_ranks_that_share_a_model_agree_and_wait_for_no_other(kind: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    watched = {"HOLDFAST_RUN": str(run.path), "PYTHONPATH": str(SITE), "HOLDFAST_POLICY": "guard", "HOLDFAST_DEBUG": "raise"}
    command = [sys.executable, str(VICTIM), kind, str(BAD), str(tmp_path)]
    ranks = [Process(command, tmp_path, WORLD_SIZE="3", RANK=str(rank), **watched) for rank in range(3)]
    try:
        for rank in ranks[:2]:
            rank.wait()
    finally:
        for rank in ranks:
            rank.close()
    skipped = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert skipped == [[BAD], [BAD, BAD + 1]]  # without a gradient there was nothing to do, for that rank alone
    told = {finding["code"] for finding in Recorded(run).findings}
    assert "non-finite-gradient" in told and "holdfast-degraded" not in told
