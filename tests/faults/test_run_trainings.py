"""However the training is started, it is recorded; what does not train leaves no trace."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, info_of, only_run, run

VICTIM = str(VICTIMS / "trains_a_little.py")
TORCHRUN = str(Path(sys.executable).parent / "torchrun")


def recordings(folder: Path) -> list[str]:
    return sorted(path.name for path in only_run(folder).iterdir() if path.name.startswith("rank-"))


def test_a_shell_script_that_starts_python_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "go.sh"
    script.write_text(f"#!/bin/sh\n{PYTHON} -c 'print(1)'\n{PYTHON} -m trains_a_little > own-file\nexit 3\n")
    script.chmod(0o755)
    done = run(tmp_path, "./go.sh", env={"PYTHONPATH": str(VICTIMS)})
    assert (done.stdout, done.returncode) == ("1\n", 3)
    assert (tmp_path / "own-file").read_text() == "trained\n"
    assert recordings(tmp_path) == ["rank-0"]
    assert list((only_run(tmp_path) / "rank-0/steps").glob("*.parquet"))


def test_torch_without_a_training_leaves_no_trace(tmp_path: Path) -> None:
    done = run(tmp_path, PYTHON, "-c", "import torch; print(torch.ones(1).item())")
    assert done.stdout == "1.0\n"
    assert sorted(path.name for path in only_run(tmp_path).iterdir()) == ["run.json", "train.log"]


@pytest.mark.skipif(not Path(TORCHRUN).exists(), reason="torchrun is not installed beside python")
def test_ranks_of_torchrun_are_told_apart_and_torchrun_itself_leaves_no_trace(tmp_path: Path) -> None:
    done = run(tmp_path, TORCHRUN, "--standalone", "--nproc-per-node", "2", VICTIM, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\ntrained\n"
    assert recordings(tmp_path) == ["rank-0", "rank-1"]
    assert info_of(only_run(tmp_path))["world_size"] == 2
