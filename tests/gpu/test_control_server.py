"""A training on a GPU is asked and changed: clipping with and without a scaler, cleaning up, saving."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.checkpoints.read import verify_checkpoint
from holdfast.probe.changing import change
from holdfast.probe.control_client import ask, listening
from holdfast.signals.run_folder import RunFolder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def train(folder: Path, asks: Callable[[RunFolder], None], *, fused: bool, scaled: bool) -> None:
    """Train until everything was asked."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    trouble: list[Exception] = []
    with holdfast.watch(model, optimizer, folder=folder) as run:

        def work() -> None:
            try:
                asks(RunFolder(run.folder))
            except Exception as error:  # noqa: BLE001 - told in the thread of the test
                trouble.append(error)

        thread, steps = threading.Thread(target=work), 0
        while steps < 50 or thread.is_alive():
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=scaled, dtype=torch.float16):
                loss = model(torch.randn(32, 64, device="cuda")).float().pow(2).mean() * 100
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            steps += 1
            if steps == 10:
                thread.start()
        thread.join()
    if trouble:
        raise trouble[0]


def value(run: RunFolder, code: str) -> Any:
    answer = ask(listening(run)[0], {"do": "eval", "code": code, "seconds": 20}, seconds=60)
    assert answer["ok"], answer
    return answer["value"]


@pytest.mark.parametrize(("fused", "scaled"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_gradient_norm_is_kept_under_a_limit_however_it_is_scaled(fused: bool, scaled: bool, tmp_path: Path) -> None:
    norm = "torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()])).item()"

    def limit(run: RunFolder) -> None:
        scale = "scaler.get_scale()" if fused and scaled else "1.0"  # a fused optimizer unscales inside the update
        change(run, {"do": "set", "text": "clip=0.001"})
        for _ in range(3):
            assert float(value(run, f"{norm} / {scale}")) <= 0.00101
        change(run, {"do": "set", "text": "clip=off"})
        value(run, "1")
        assert float(value(run, f"{norm} / {scale}")) > 0.00101

    train(tmp_path, limit, fused=fused, scaled=scaled)


def test_memory_is_given_back_and_a_save_is_clean(tmp_path: Path) -> None:
    def clean(run: RunFolder) -> None:
        value(run, "waste = torch.empty(1 << 28, dtype=torch.uint8, device='cuda')\ndel waste")
        before = int(value(run, "torch.cuda.memory_reserved()"))
        value(run, "optimizer.zero_grad(); gc.collect(); torch.cuda.empty_cache()")
        assert before - int(value(run, "torch.cuda.memory_reserved()")) >= 1 << 28
        (saved,) = change(run, {"do": "save", "path": None})
        assert verify_checkpoint(Path(saved.answer["path"]))["step"] == saved.answer["step"]
        change(run, {"do": "set", "text": "lr=1e-5"})
        assert value(run, 'optimizer.param_groups[0]["lr"]') == "1e-05"

    train(tmp_path, clean, fused=True, scaled=False)
