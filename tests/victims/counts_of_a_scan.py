"""A validation that a test interrupts: it sends itself Ctrl-C when 100 samples are done, and says what it was told."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from holdfast.data.validate import Settings, validate


def interrupt(done: int, total: int) -> None:
    if done == 100:
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started deaf to it
    try:
        validate(Path(sys.argv[1]), Settings(jobs=2, cache=Path(sys.argv[2])), interrupt)
    except KeyboardInterrupt:
        print("interrupted")
