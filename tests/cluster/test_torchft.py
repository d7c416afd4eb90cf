"""A replica of a real torchft training is killed: the other one finishes, and its run tells when one left, and what it cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnosis.of_run import check_up_run
from holdfast.signals.run_folder import RunFolder

PYTHON = os.environ.get("HOLDFAST_RAY_PYTHON", "")
TRAINING = Path(__file__).with_name("torchft_training.py")
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not PYTHON, reason="make test-ray sets up Ray and torchft")]


def until(there: Callable[[], Any], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


def step_in(path: Path) -> int:
    try:
        return int(json.loads(path.read_text())["step"])
    except (OSError, ValueError):
        return 0


def test_the_others_train_on_and_the_run_tells_when_and_what_it_cost(tmp_path: Path) -> None:
    lighthouse = "http://127.0.0.1:29517"
    program = [str(Path(PYTHON).with_name("torchft_lighthouse"))]
    program += ["--min_replicas", "1", "--join_timeout_ms", "3000", "--bind", "127.0.0.1:29517"]
    processes = [subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse, "OMP_NUM_THREADS": "1"}
    try:
        for number, name in enumerate(("stays", "leaves")):
            torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--master-port", str(29521 + number)]
            words = [PYTHON, "-m", "holdfast", "run", "--name", name, "--", *torchrun, str(TRAINING), name, "400", f"{name}.json"]
            own = {**environment, "REPLICA_GROUP_ID": str(number)}
            processes.append(subprocess.Popen(words, cwd=tmp_path, env=own, stdout=sys.stderr))
        both = [tmp_path / f"{name}.json" for name in ("stays", "leaves")]
        until(lambda: all(step_in(path) > 60 for path in both))
        killed = RunFolder.open(tmp_path / "runs" / "leaves").recordings()[0].info()["pid"]
        os.kill(killed, signal.SIGKILL)
        assert processes[1].wait(240) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    run = RunFolder.open(tmp_path / "runs" / "stays")
    rows = [row for row in run.journal if row.get("code") == "replica-left"]
    assert step_in(tmp_path / "stays.json") == 400 and len(rows) == 1
    assert rows[0]["step"] > 60 and rows[0]["evidence"]["seconds"] > 0 and rows[0]["evidence"]["replicas"] == 1
    assert [replica.partition(":")[0] for replica in rows[0]["evidence"]["left"]] == ["leaves"]
    assert not rows[0]["evidence"]["joined"]
    assert "replica-left" in {finding.code for episode in check_up_run(run).episodes for finding in episode.findings}
