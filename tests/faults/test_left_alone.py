"""What a script does to its whole process, to all its threads or all its descriptors, does not meet Holdfast there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from holdfast_run import PYTHON, environment, findings_of, run

TRAIN = """
import os, signal, sys, threading, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)


train(60)
"""
JOINS_ALL_THREADS = """
print(threading.active_count(), [thread.name for thread in threading.enumerate()])
for thread in threading._active.copy().values():
    if thread is not threading.main_thread():
        thread.join()
"""
WAITS_FOR_A_SIGNAL = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigwait([signal.SIGUSR2]).name)
"""
CLOSES_ALL_DESCRIPTORS = """
os.closerange(3, 4096)
files = [open(f"out-{number}.txt", "w+") for number in range(12)]
for file in files:
    print("mine", file=file, flush=True)
train(300)
time.sleep(1.5)  # Holdfast looks after its descriptors about once a second
train(60)
for file in files:
    file.seek(0)
    print(repr(file.read()))
"""


@pytest.mark.parametrize(
    "ending", [JOINS_ALL_THREADS, WAITS_FOR_A_SIGNAL, CLOSES_ALL_DESCRIPTORS], ids=["threads", "signals", "descriptors"]
)
def test_the_script_ends_as_it_does_alone(tmp_path: Path, ending: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN + ending + "\nprint('the end')\n")
    bare = subprocess.run(
        [PYTHON, str(script)], cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, check=True
    )
    done = run(tmp_path, "--name", "a", "--policy", "heal", PYTHON, str(script), timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout and bare.stdout.endswith("the end\n")
    assert not findings_of(tmp_path / "runs/a")
