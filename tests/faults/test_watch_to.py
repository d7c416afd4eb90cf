"""`holdfast.watch(to=...)`: its side process sends the run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from holdfast_run import PYTHON, environment, wait_until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TRAINS = """
import torch, holdfast
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with holdfast.watch(model, optimizer, name="a", to=["tensorboard", "mlflow"]) as run:
    for step in range(40):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(accuracy=step / 40, split="val")
"""


@pytest.mark.slow
def test_a_watched_script_is_sent_and_a_missing_package_is_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-c", TRAINS], cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0 and "mlflow is not installed: pip install mlflow, then: holdfast sync" in done.stderr
    cursor = tmp_path / "runs" / "a" / "sent" / "tensorboard.json"
    wait_until(lambda: cursor.exists() and bool(json.loads(cursor.read_text()).get("finished")))
    events = EventAccumulator(str(tmp_path / "runs" / "a"), size_guidance={"scalars": 0}).Reload()
    assert [one.step for one in events.Scalars("train/loss")] == list(range(40))
    assert len(events.Scalars("val/accuracy")) == 40
