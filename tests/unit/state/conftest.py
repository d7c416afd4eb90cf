"""What the tests of `state` share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quiet_process import one_thread, only_our_own_objects  # noqa: F401 - fixtures
from store_loop import Loop

from holdfast.state import checkpoint_parts


@pytest.fixture
def loop() -> Loop:
    """A training that the store saves."""
    return Loop()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that writes only once the event is set."""
    event, write = threading.Event(), checkpoint_parts.write_checkpoint

    def slow(*args: Any, **kwargs: Any) -> Path:
        assert event.wait(600)
        return write(*args, **kwargs)

    monkeypatch.setattr(checkpoint_parts, "write_checkpoint", slow)
    yield event
    event.set()
