"""On a GPU: a state is looked at before it is saved with one wait for the device, and a good file is kept from NaN."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.inside import watch as watching
from holdfast.inside.arm import armed
from holdfast.inside.gradients.non_finite import bad_tensors

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(watching, "_start_outside", lambda _run: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "raise")
    yield
    armed().close_all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_look_waits_for_the_device_once_and_finds_one_nan(dtype: torch.dtype) -> None:
    state = {f"layer.{number}.weight": torch.ones(300, 300, device="cuda", dtype=dtype) for number in range(200)}
    bad_tensors(state)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert bad_tensors(state) == []
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum("synchroniz" in str(one.message) for one in told) == 1
    state["layer.77.weight"][3, 4] = math.nan
    assert [(one.name, one.nan) for one in bad_tensors(state)] == [("layer.77.weight", 1)]


@pytest.mark.parametrize("amp", [False, True])
def test_a_good_file_is_kept_from_a_state_on_the_gpu(amp: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with holdfast.watch(model, optimizer, policy="guard") as run:
        for _ in range(5):
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                loss = model(torch.randn(8, 16, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
        good = Path("best.pt").read_bytes()
        with torch.no_grad():
            model[2].bias.fill_(math.inf)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
        folder = run.folder
    assert Path("best.pt").read_bytes() == good and Path("best.non-finite-step-5.pt").exists()
    assert "checkpoint-non-finite" in (folder / "journal.jsonl").read_text()
