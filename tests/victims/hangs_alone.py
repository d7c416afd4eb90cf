"""Record some steps without torch, then hang in one way: hangs_alone.py RUNS KIND.

KIND is loop, deadlock, gil, sleeps or moves.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from pathlib import Path

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.stack_signal import answer_signal

first, second = threading.Lock(), threading.Lock()


def loop() -> None:
    count = 0
    while True:
        count += 1


def deadlock() -> None:
    both = threading.Barrier(2)

    def other_way() -> None:
        with second:
            both.wait()
            with first:  # the other thread's line
                pass

    threading.Thread(target=other_way, name="other", daemon=True).start()
    with first:
        both.wait()
        take_second()


def take_second() -> None:
    with second:  # the main thread's line
        pass


def gil() -> None:
    while True:
        ctypes.PyDLL(None).sleep(600)  # a PyDLL keeps the interpreter lock


def sleeps() -> None:
    threading.Thread(target=threading.Event().wait, name="helper", daemon=True).start()
    secret = "kept to itself"
    time.sleep(600)
    print(secret)


class Steps:
    """A table of steps, as a training writes it."""

    def __init__(self, runs: Path) -> None:
        self.run = RunFolder.create(runs, "run", started=time.time())
        self.recorder = Recorder.start(self.run, rank=0)
        answer_signal(self.recorder.recording.path)
        self.table = self.recorder.table("steps")

    def take(self) -> None:
        time.sleep(0.02)
        values = {"step": self.table.rows, "time": time.time(), "step_seconds": 0.02, "loss": 1.0}
        self.table.append([values.get(name, 0) for name in TABLES["steps"].column_names])


def main(runs: Path, kind: str) -> None:
    steps = Steps(runs)
    for _ in range(20):
        steps.take()
    print("ready", flush=True)
    while kind == "moves":
        steps.take()
    {"loop": loop, "deadlock": deadlock, "gil": gil, "sleeps": sleeps}[kind]()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
