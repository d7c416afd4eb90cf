"""Ranks that no longer hold the same weights train different models, and nothing in their losses says so."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast_run import VICTIMS, typed
from watched_training import WarmPython

from holdfast.recovery.judge import Judge
from holdfast.signals.run_folder import RunFolder

RANKS = str(Path(__file__).with_name("forked_ranks.py"))


def test_ranks_with_other_weights_are_reported_and_diagnosed_with_the_cause(warm: WarmPython, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "it")
    script = str(VICTIMS / "ranks_with_other_weights.py")
    warm.run(tmp_path, RANKS, script, HOLDFAST_RUN=str(run.path), HOLDFAST_DEBUG="raise")
    Judge(run).look(act=False)
    (live,) = (entry for entry in run.journal if entry.get("code") == "rank-divergence")
    assert live["evidence"]["rank_1"] > 1.05 * live["evidence"]["rank_0"] and live["evidence"]["gradients_shared"]
    diagnosed = typed("diagnose", "--json", "it", folder=tmp_path)
    assert diagnosed.returncode == 1, diagnosed.stderr
    assert json.loads(diagnosed.stdout)["runs"][0]["diagnoses"][0]["cause"] == "different-start"
