"""Two ranks share a model, a third one of the same world does not train: the two agree between themselves, nobody waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from watched_training import Recorded, WarmPython

from holdfast.signals.run_folder import RunFolder

VICTIM = Path(__file__).parents[1] / "victims/ranks_of_which_some_train.py"
RANKS = str(Path(__file__).with_name("forked_ranks.py"))
BAD = 3


@pytest.mark.parametrize("kind", ["fsdp2", pytest.param("fsdp1", marks=pytest.mark.slow)])
def test_ranks_that_share_a_model_agree_and_wait_for_no_other(kind: str, warm: WarmPython, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    watched = {"HOLDFAST_RUN": str(run.path), "HOLDFAST_POLICY": "guard", "HOLDFAST_DEBUG": "raise"}
    warm.run(tmp_path, RANKS, str(VICTIM), kind, str(BAD), str(tmp_path), RANKS="3", **watched)
    skipped = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert skipped == [[BAD], [BAD, BAD + 1]]  # without a gradient there was nothing to do, for that rank alone
    told = {finding["code"] for finding in Recorded(run).findings}
    assert "non-finite-gradient" in told and "holdfast-degraded" not in told
