"""A drill that a scheduler or `timeout` ends takes the training that it runs with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

_ENDLESS = """import os, signal
descriptor = os.open("pid", os.O_WRONLY)
os.write(descriptor, str(os.getpid()).encode())
os.close(descriptor)
signal.pause()
"""


def test_sigterm_to_a_drill_ends_the_training_that_it_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    (tmp_path / "train.py").write_text(_ENDLESS)
    command = [sys.executable, "-m", "holdfast", "drill", "--faults", "nan-gradient", "--", sys.executable, "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as drill:
        training = psutil.Process(int((tmp_path / "pid").read_text()))  # once it runs
        drill.send_signal(signal.SIGTERM)
        assert drill.wait(60) == 130
        assert psutil.wait_procs([training], timeout=30)[1] == []
