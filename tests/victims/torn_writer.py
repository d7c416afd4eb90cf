"""Append three rows, and die by SIGKILL in the middle of the fourth: torn_writer.py FOLDER."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


class Deadly:
    """A number that kills the process when it is stored."""

    def __float__(self) -> float:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def main(folder: Path) -> None:
    steps = Recorder.start(RunFolder.create(folder, "run"), rank=0).table("steps")
    width = len(TABLES["steps"].columns)
    for number in range(3):
        steps.append([number] * width)
    loss_at = TABLES["steps"].column_names.index("loss")
    steps.append([3] * loss_at + [Deadly()] + [3] * (width - loss_at - 1))  # type: ignore[list-item]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
