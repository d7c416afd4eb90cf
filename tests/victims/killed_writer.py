"""Kill a process that writes a table, at a random moment, again and again: killed_writer.py KILLS SEED.

The victim notes in memory shared with this process how many rows are published, after each `append` came back; that
note outlives it. Segments are tiny, so that many kills fall into the switch from one to the next. Prints a JSON object.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.errors import DamagedSegment
from holdfast.signals import recorder as recorder_module
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.segment import Segment

STEPS = replace(TABLES["steps"], first_segment_rows=8, segment_rows=128)
LONGEST_LIFE_SECONDS = 0.03


def write_until_killed(folder: Path, note: mmap.mmap) -> None:
    """Append rows, the row's own number in every column, and note the published count after each."""
    recorder_module.TABLES = {"steps": STEPS}
    steps = Recorder.start(RunFolder.create(folder, "run"), rank=0).table("steps")
    published = memoryview(note).cast("Q")
    width, number = len(STEPS.columns), 0
    while True:
        steps.append([number] * width)
        published[0] = steps.rows
        number += 1


def kill_one(folder: Path, moment: random.Random) -> Counter[str]:
    """Start a victim, kill it, and compare what can be read with what it had published."""
    note = mmap.mmap(-1, 8)
    victim = os.fork()
    if victim == 0:
        try:
            write_until_killed(folder, note)
        finally:
            os._exit(1)  # a victim that fails by itself must not go on as a second parent
    time.sleep(moment.uniform(0.001, LONGEST_LIFE_SECONDS))
    os.kill(victim, signal.SIGKILL)
    _, status = os.waitpid(victim, 0)
    published = int.from_bytes(note[:8], "little")
    return Counter(kills=1, victims_that_failed=not os.WIFSIGNALED(status), published=published) + compare(folder, published)


def compare(folder: Path, published: int) -> Counter[str]:
    """Rows that can be read, that are lost, that are wrong, and torn tails."""
    rows, torn = [], 0
    for path in sorted((folder / "run" / "rank-0" / "steps").glob("*.seg")):
        with suppress(DamagedSegment):  # the one that was being made
            segment = Segment(path)
            rows.append(np.stack([segment.column(name) for name in STEPS.column_names], axis=1))
            torn += segment.torn_tail
    read = np.concatenate(rows) if rows else np.empty((0, len(STEPS.columns)))
    halves = int((read != read[:, :1]).any(axis=1).sum())
    out_of_order = int((np.diff(read[:, 0]) <= 0).sum())
    return Counter(
        read=len(read),
        lost=max(0, published - len(read)),
        half_rows=halves,
        out_of_order=out_of_order,
        torn_tails=torn,
        segments=len(rows),
    )


def main(kills: int, seed: int) -> None:
    moment, total = random.Random(seed), Counter[str]()
    for _ in range(kills):
        with tempfile.TemporaryDirectory(prefix="holdfast-kill-") as folder:
            total.update(kill_one(Path(folder), moment))
    print(json.dumps(total))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
