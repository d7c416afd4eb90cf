"""Record, and fork children that append, close and leave in every way a child can: forking_writer.py FOLDER."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.segment import Segment

WIDTH = len(TABLES["steps"].columns)


def child(recorder: Recorder, way: str) -> None:
    for _ in range(5000):
        recorder.table("steps").append([-1] * WIDTH)
    recorder.table("groups").append([-1] * len(TABLES["groups"].columns))
    if way == "close":
        recorder.close()
    if way in ("close", "exit"):
        sys.exit(0)  # runs atexit, which closes
    os._exit(0)


def check_untouched(recorder: Recorder, newest: int) -> None:
    """What a reader sees now is what the parent wrote, and the segment is still open."""
    segments = [Segment(path) for path in sorted((recorder.recording.path / "steps").glob("*.seg"))]
    seen = [int(step) for segment in segments for step in segment.column("step")]
    assert seen == list(range(newest + 1)), f"{len(seen)} rows after {newest}, the last ones {seen[-3:]}"
    current = [segment for segment in segments if segment.rows][-1]
    assert not current.sealed, "a child sealed the parent's segment"


def main(folder: Path) -> None:
    recorder = Recorder.start(RunFolder.create(folder, "run"), rank=0)
    atexit.register(recorder.close)
    steps = recorder.table("steps")
    for number in range(3000):
        steps.append([number] * WIDTH)
        if number in (0, 600, 1500):
            pid = os.fork()
            if pid == 0:
                child(recorder, {0: "close", 600: "exit", 1500: "_exit"}[number])
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            check_untouched(recorder, number)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
