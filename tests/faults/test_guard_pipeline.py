"""Two stages of one model, one of which has a bad gradient: both skip that update. Nobody waits for a stage that has failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from watched_training import Recorded, WarmPython

from holdfast.signals.run_folder import RunFolder

VICTIM = Path(__file__).parents[1] / "victims/ranks_in_a_pipeline.py"
RANKS = str(Path(__file__).with_name("forked_ranks.py"))
BAD = 3


def unmoved(warm: WarmPython, folder: Path, *words: str, **env: str) -> tuple[list[list[int]], RunFolder]:
    """The steps at which the weights of each stage have not moved, and the run."""
    run = RunFolder.create(folder, "run")
    watched = {"HOLDFAST_RUN": str(run.path), "HOLDFAST_POLICY": "guard", **env}
    warm.run(folder, RANKS, str(VICTIM), str(BAD), str(folder), *words, **watched)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)], run


def test_all_stages_of_a_pipeline_skip_the_same_update(warm: WarmPython, tmp_path: Path) -> None:
    steps, run = unmoved(warm, tmp_path, HOLDFAST_DEBUG="raise")
    assert steps == [[BAD], [BAD]]
    assert sorted((row["rank"], row["step"]) for row in run.journal if row["kind"] == "action") == [(0, BAD), (1, BAD)]
    assert "holdfast-degraded" not in {finding["code"] for finding in Recorded(run).findings}


@pytest.mark.slow
def test_nobody_waits_for_a_stage_whose_guard_has_failed(warm: WarmPython, tmp_path: Path) -> None:
    steps, run = unmoved(warm, tmp_path, "breaks the guard of stage 1 before")
    assert steps == [[BAD], []]
    reasons = {row["rank"]: row["evidence"]["error"] for row in run.journal if "decides alone" in str(row)}
    assert "of another stage" in reasons[0] and "of this stage" in reasons[1]
