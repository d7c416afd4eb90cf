"""Ranks that no longer hold the same weights train different models, and nothing in their losses says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from holdfast_run import HOLDFAST, PYTHON, VICTIMS, environment, findings_of, run

TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_ranks_with_other_weights_are_told_live_and_afterwards_with_the_cause(tmp_path: Path) -> None:
    words = ("--name", "it", "--", *TORCHRUN, str(VICTIMS / "ranks_with_other_weights.py"))
    done = run(tmp_path, *words, env={"OMP_NUM_THREADS": "1"}, timeout=120)
    assert done.returncode == 0, done.stderr
    (live,) = [finding for finding in findings_of(tmp_path / "runs/it") if finding["code"] == "rank-divergence"]
    assert live["evidence"]["rank_1"] > 1.05 * live["evidence"]["rank_0"] and live["evidence"]["gradients_shared"]
    said = subprocess.run(
        [*HOLDFAST, "diagnose", "--json", "it"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 1, said.stderr
    assert json.loads(said.stdout)["runs"][0]["diagnoses"][0]["cause"] == "different-start"
