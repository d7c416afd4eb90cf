"""Many trainings one after the other in one process: those that are over are closed, and all of them stay readable."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_run import findings_of, typed
from watched_training import WarmPython

from holdfast.signals.run_folder import RunFolder

SCRIPT = """
import os, threading, time
import torch
from torch import nn

def train(steps):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        schedule.step()

for number in range(1, 13):
    train(30)
    if number in (3, 12):
        time.sleep(0.5)
        print(len(os.listdir("/proc/self/fd")), sum(t.name.startswith("holdfast") for t in threading.enumerate()), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted in /proc")
@pytest.mark.parametrize("policy", [pytest.param("observe", marks=pytest.mark.slow), "heal"])
def test_trainings_that_are_over_leave_no_threads_and_no_open_files(warm: WarmPython, tmp_path: Path, policy: str) -> None:
    (tmp_path / "trials.py").write_text(SCRIPT)
    run = RunFolder.create(tmp_path / "runs", "run")
    printed = warm.run(tmp_path, str(tmp_path / "trials.py"), HOLDFAST_RUN=str(run.path), HOLDFAST_POLICY=policy)
    (files, threads), (files_later, threads_later) = (map(int, line.split()) for line in printed.splitlines())
    assert files_later <= files + 2
    assert threads_later <= threads + 1
    assert not findings_of(run.path)
    query = "SELECT count(DISTINCT part) AS parts, count(*) AS steps FROM steps"
    counted = typed("query", "-t", str(run.path), query, folder=tmp_path)
    assert counted.stdout.split() == ["parts,steps", "12,360"], counted
