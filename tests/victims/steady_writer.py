"""Append rows to `steps` for some seconds, the row's own number in every column: steady_writer.py FOLDER SECONDS."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


def main(folder: Path, seconds: float) -> None:
    recorder = Recorder.start(RunFolder.create(folder, "run"), rank=0)
    steps = recorder.table("steps")
    width = len(TABLES["steps"].columns)
    print("ready", flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(100):
            steps.append([steps.rows] * width)
    print(steps.rows, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
