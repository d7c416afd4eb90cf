"""However the training is started, it is recorded; what does not train leaves no trace. For torchrun see test_restart.py."""

from __future__ import annotations

import shlex
from pathlib import Path

from holdfast_run import PYTHON, VICTIMS, only_run, run

from holdfast.probe.rows import last_rows


def recordings(folder: Path) -> list[str]:
    return sorted(path.name for path in only_run(folder).iterdir() if path.name.startswith("rank-"))


def test_a_shell_script_is_recorded_and_torch_without_a_training_leaves_no_trace(tmp_path: Path) -> None:
    script = tmp_path / "go.sh"
    python = shlex.quote(PYTHON)
    uses = f"{python} -c 'import torch; print(torch.ones(1).item())'\nls runs/a\n"
    script.write_text(f"#!/bin/sh\n{uses}{python} -m trains_a_little > own-file\nexit 3\n")
    script.chmod(0o755)
    done = run(tmp_path, "--name", "a", "./go.sh", env={"PYTHONPATH": str(VICTIMS)}, timeout=600)
    assert (done.stdout, done.returncode) == ("1.0\nrun.json\ntrain.log\n", 3)
    assert (tmp_path / "own-file").read_text() == "trained\n"
    assert recordings(tmp_path) == ["rank-0"]
    assert len(last_rows(only_run(tmp_path) / "rank-0", "steps", ("step",), 9)["step"]) > 0


LATE = """
from holdfast.integrations.ultralytics import EVENTS
import torch
model = torch.nn.Linear(4, 2)
for _ in range(200):  # nothing is imported any more, no optimizer either
    model.zero_grad()
    model(torch.ones(3, 4)).pow(2).mean().backward()
    for parameter in model.parameters():
        parameter.data.add_(-0.01 * parameter.grad)
"""


def test_a_script_that_imports_a_part_of_holdfast_before_torch_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATE)
    done = run(tmp_path, "--name", "a", PYTHON, "train.py", timeout=600)
    assert done.returncode == 0, done.stderr
    assert recordings(tmp_path) == ["rank-0"]
