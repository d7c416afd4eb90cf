"""Memory of other processes, as the system tells it."""

from __future__ import annotations

import os
import sys

import pytest

from holdfast.inside.observers.memory import resident_of


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_memory_of_a_worker_that_has_ended_is_unknown_and_not_zero() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not taken note of that
    assert resident_of(child) is None
    os.waitpid(child, 0)
    assert resident_of(child) is None and (resident_of(os.getpid()) or 0) > 1 << 20
