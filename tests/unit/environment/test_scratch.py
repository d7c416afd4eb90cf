"""A script that is started to measure or to compare must not fill its owner's tracker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from holdfast.environment.repro.pair import RepeatedTraining, run_once

SCRIPT = """
import json, os, sys, torch
names = ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI", "_MLFLOW_SERVER_ARTIFACT_ROOT", "TRACKIO_DIR")
json.dump({name: os.environ.get(name) for name in names}, open(sys.argv[1], "w"))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_repro_sends_what_a_script_logs_to_a_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker.example:5000")
    monkeypatch.setenv("WANDB_MODE", "online")
    script, seen = tmp_path / "train.py", tmp_path / "seen.json"
    script.write_text(SCRIPT)
    run_once(RepeatedTraining(command=[sys.executable, str(script), str(seen)], steps=2, seconds=120))
    found = json.loads(seen.read_text())
    assert found["WANDB_MODE"] == "offline" and found["MLFLOW_TRACKING_URI"].startswith("sqlite:////")
    assert all(found.values()) and not Path(found["WANDB_DIR"]).exists(), "the folder is gone with the run"
