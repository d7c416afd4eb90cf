"""The line at the end of `holdfast run`: what was wrong, and nothing where all was well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from every_case import every_case

from holdfast.diagnosis.run_verdict import verdict_on
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

NAN = {
    "kind": "finding",
    "code": "non-finite-loss",
    "severity": "critical",
    "step": 116,
    "evidence": {"onset": 116, "loss": "nan"},
}
SLOW = {"kind": "finding", "code": "slow-loading", "severity": "warning", "step": 1300, "evidence": {"onset": 1200}}
SPIKE = {"kind": "finding", "code": "loss-spike", "severity": "warning", "step": 40, "evidence": {"onset": 40}}
NOTE = {"kind": "finding", "code": "clipping-every-step", "severity": "info", "step": 300, "evidence": {}}
OWN = {
    "kind": "finding",
    "code": "holdfast-degraded",
    "severity": "warning",
    "evidence": {"what": "a table", "error": "OSError: no"},
}
UNSEEN = {**OWN, "evidence": {"what": "recording steps", "error": "RuntimeError: gradients were computed"}}
SKIPPED = {"kind": "action", "action": "skip-batch", "step": 116, "because": "non-finite-loss", "state": "done"}
KILLED = {"kind": "finding", "code": "process-died", "severity": "critical", "step": 51, "evidence": {}}
RESTARTED = {"kind": "action", "action": "restart", "step": 51, "because": "process-died", "state": "done"}
RESUMED = {**RESTARTED, "checkpoint": "/a/last.pt", "resumed_with": "--resume /a/last.pt", "done_again": 12}
WITHOUT = {**RESTARTED, "checkpoint": "/a/last.pt", "flag_failed": True}
DIED = "finished; repaired: the process ended early at step 51 (epoch 5)"
REFUSED = {**SKIPPED, "step": 117, "state": "refused"}


@every_case(
    ("rows", "said"),
    [
        ([], None),
        ([NOTE], None),
        ([OWN], None),
        ([OWN, UNSEEN], "finished, but no step was recorded: gradients were computed: holdfast diagnose a"),
        ([NAN], "finished, but the loss is NaN from step 116 (epoch 11): holdfast diagnose a"),
        ([SPIKE], "finished, but the loss jumped at step 40 (epoch 4): holdfast diagnose a"),
        ([SLOW], "finished, but data loading is slow from step 1,200: holdfast diagnose a"),
        ([SLOW, NAN, NAN], "finished, but the loss is NaN from step 116 (epoch 11), and 1 more: holdfast diagnose a"),
        ([NAN, REFUSED], "finished, but the loss is NaN from step 116 (epoch 11): holdfast diagnose a"),
        ([NAN, SKIPPED], "finished; repaired: non-finite loss at step 116 (epoch 11): holdfast diagnose a"),
        ([KILLED, RESTARTED], f"{DIED}: holdfast diagnose a"),
        ([KILLED, RESUMED], f"{DIED}, resumed from last.pt (12 steps repeated): holdfast diagnose a"),
        ([KILLED, RESUMED, RESUMED], f"{DIED}, resumed from last.pt (24 steps repeated): holdfast diagnose a"),
        ([KILLED, {**RESUMED, "done_again": None}], f"{DIED}, resumed from last.pt: holdfast diagnose a"),
        ([KILLED, RESUMED, WITHOUT], f"{DIED}: holdfast diagnose a"),
        ([NAN, SKIPPED, SLOW], "finished, but data loading is slow from step 1,200: holdfast diagnose a"),
    ],
)
def test_the_last_line_says_what_is_still_wrong(
    rows: list[dict[str, Any]], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder.create(Path("runs"), "a")
    recorder = Recorder.start(run, 0)
    for step in range(130):
        known = {"step": step, "epoch": step // 10}
        recorder.table("steps").append([known.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    recorder.close()
    for row in rows:
        run.journal.write(**row)
    verdict = verdict_on(run)
    assert (verdict and verdict.text) == said and (verdict is None or verdict.repaired == verdict.text.startswith("finished;"))
