"""fastai, whose optimizers are not torch's, in its own environment: it moves other packages."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
from holdfast_run import PYTHON, run
from watched_training import Recorded

from holdfast.signals.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("fastai") is None, reason="fastai is not installed: pip install fastai"),
]
SCRIPT = """
import sys
import torch
from torch import nn
from fastai.callback.schedule import fit_one_cycle
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper

data = [(torch.randn(8), torch.randn(1)) for _ in range(64)]
loaders = DataLoaders(DataLoader(data, bs=8, num_workers=0), DataLoader(data, bs=8, num_workers=0))
own = {"opt_func": lambda groups, **hypers: OptimWrapper(groups, torch.optim.SGD, **hypers)} if "torch" in sys.argv else {}
Learner(loaders, nn.Linear(8, 1), loss_func=nn.MSELoss(), **own).fit_one_cycle(4, 0.1)
"""


@pytest.mark.parametrize("optimizer", ["fastai", "torch"])
def test_every_step_of_fastai_is_recorded_with_its_optimizer_and_with_torchs(tmp_path: Path, optimizer: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run(tmp_path, "--name", "a", "--policy", "heal", PYTHON, "train.py", optimizer)
    assert done.returncode == 0, done.stderr
    steps = Recorded(RunFolder.open(tmp_path / "runs/a")).steps
    assert steps["step"] == [*range(32)]
    assert all(map(math.isfinite, [*steps["loss"], *steps["grad_norm"]]))
    assert steps["lr"][0] < max(steps["lr"]) == pytest.approx(0.1, rel=0.02) and steps["lr"][-1] < steps["lr"][0]
