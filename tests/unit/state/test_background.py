"""Slow work beside the training, also where the system is at its limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

NO_THREAD = """
import resource, threading
from holdfast.state.background import BackgroundThread

troubles, done = [], []
helper = BackgroundThread("slow work", on_error=lambda what, error: troubles.append(what))
threading.stack_size(256 << 20)
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), resource.RLIM_INFINITY))
helper.submit(lambda: done.append(1))
helper.close()
print(troubles, done)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of the process")
def test_where_no_thread_can_be_started_the_work_is_done_and_closing_raises_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "['starting a thread'] [1]\n", done.stderr
