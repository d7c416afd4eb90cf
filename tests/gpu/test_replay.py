"""On a GPU: a bad step is kept, replayed, and its operation named. Run with `make test-gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(256, 8)
inputs[77] = 0
loader = DataLoader(TensorDataset(inputs, torch.ones(256, 1)), batch_size=16, shuffle=True, pin_memory=True)
model = nn.Sequential(nn.Linear(8, 1, bias=False), nn.Dropout(0.0)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
for batch, target in loader:
    outputs = model(batch.cuda(non_blocking=True))
    loss = ({loss}).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("loss", "operation", "stage"),
    [
        ("target.cuda() * torch.log(outputs ** 2)", "aten::log", "forward"),
        ("torch.sqrt(outputs ** 2) - target.cuda()", "aten::div", "backward"),
    ],
)
def test_the_operation_is_named_on_a_gpu(loss: str, operation: str, stage: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(loss=loss))
    holdfast = [sys.executable, "-m", "holdfast"]
    how = {"cwd": tmp_path, "env": {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, "text": True, "capture_output": True}
    words = [*holdfast, "run", "--policy", "guard", "--name", "bad", "--", sys.executable, "train.py"]
    subprocess.run(words, check=True, timeout=600, **how)
    done = subprocess.run([*holdfast, "replay", "bad", "--json"], check=False, timeout=600, **how)
    assert done.returncode == 1, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert (answer["operation"], answer["stage"], answer["samples"]) == (operation, stage, [77])
    assert answer["line"]["code"].startswith("loss = ") and answer["weights_loaded"]
