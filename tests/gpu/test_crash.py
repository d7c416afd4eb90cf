"""A kernel fails on a card: the run says what it was, and under `heal` goes on in a new process. Run with `make test-gpu`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from holdfast_run import PYTHON, VICTIMS, findings_of, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
ASSERTS = str(VICTIMS / "asserts_on_the_card.py")


def test_a_failed_kernel_is_told_with_its_cause_and_the_command_ends(tmp_path: Path) -> None:
    done = run(tmp_path, "--name", "a", PYTHON, ASSERTS, timeout=600)
    assert done.returncode == 1, f"as without Holdfast, and no abort: {done.stderr}"
    found = json.loads((tmp_path / "runs/a/post-mortem.json").read_text())
    assert 58 <= found["step"] <= 61
    assert found["finding"]["code"] in ("token-out-of-range", "device-side-assert", "script-error"), found["finding"]
    assert found["causes"][0] in ("labels-out-of-range", "index-beyond-the-end"), found["causes"]
    assert "CUDA error" in done.stderr and len(findings_of(tmp_path / "runs/a")) == 1


def test_under_heal_the_training_goes_on_from_its_checkpoint_in_a_new_process(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--resume-args", "{checkpoint}")
    done = run(tmp_path, "--name", "a", *words, PYTHON, ASSERTS, timeout=600, env={"HOLDFAST_BACK_OFF": "0.2"})
    assert done.returncode == 0, done.stderr
    restarts = [json.loads(line) for line in (tmp_path / "runs/a/journal.jsonl").read_text().splitlines()]
    assert [row["state"] for row in restarts if row.get("action") == "restart"][-1] == "done"
    assert "end: step 150" in done.stdout
