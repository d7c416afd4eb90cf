"""On a GPU: the weights of FSDP2 are guarded on the device, with NCCL; one rank, as NCCL wants a GPU for each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from holdfast.signals.run_folder import RunFolder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

SCRIPT = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

kind, store, out = sys.argv[1:]
torch.cuda.set_device(0)
dist.init_process_group("nccl", rank=0, world_size=1, init_method=f"file://{store}")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
draws = torch.Generator().manual_seed(1)
for step in range(40):
    inputs = torch.randn(32, 16, generator=draws)
    if step == 20 and kind == "skipped":
        continue
    if step == 20:
        inputs[0, 0] = torch.nan
    optimizer.zero_grad()
    model(inputs.cuda()).square().mean().backward()
    optimizer.step()
torch.save({name: parameter.full_tensor().cpu() for name, parameter in model.named_parameters()}, out)
dist.destroy_process_group()
"""


def test_a_bad_batch_of_a_sharded_model_leaves_the_weights_as_if_it_had_been_skipped(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    guarded = [sys.executable, "-m", "holdfast", "run", "--policy", "guard", "--name", "a", "--", sys.executable]
    for kind, start in (("skipped", [sys.executable]), ("bad", guarded)):
        arguments = [str(script), kind, str(tmp_path / f"{kind}.store"), str(tmp_path / f"{kind}.pt")]
        done = subprocess.run([*start, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    wanted, got = torch.load(tmp_path / "skipped.pt"), torch.load(tmp_path / "bad.pt")
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    rows = list(RunFolder.open(tmp_path / "runs" / "a").journal)
    assert [row["step"] for row in rows if row["kind"] == "action" and row["action"] == "skip-batch"] == [20]
