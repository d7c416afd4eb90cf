"""Let the tests here import what they share (`holdfast_run`)."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_counts() -> Iterator[None]:
    """A test run in the background of a shell ignores SIGINT, and would pass that on to what it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
