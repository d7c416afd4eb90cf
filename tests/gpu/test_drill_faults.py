"""Faults of a drill that need a GPU do what they say. Run with `make test-gpu`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.drills.faults import find
from holdfast.drills.injection.context import FaultContext

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def test_memory_of_the_card_runs_out_at_the_next_step_that_needs_more(tmp_path: Path) -> None:
    model = torch.nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    context = FaultContext(tmp_path, seed=0)
    assert context.is_main(optimizer)
    try:
        find("gpu-oom")().update(context)
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.ones(1 << 16, 512, device="cuda"))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
