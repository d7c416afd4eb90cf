"""What tests in several folders share."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch: other tests run beside, and waiting threads cost more than they give
pytest.register_assert_rewrite("watched_training")
_NICENESS = os.getpriority(os.PRIO_PROCESS, 0)  # as the tests were started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from watched_training import Trainings


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    """Runs the scripts of tests/trainings, each once for all tests."""
    from watched_training import Trainings  # torch is imported only where it is needed

    all_of_them = Trainings(tmp_path_factory.mktemp)
    yield all_of_them
    all_of_them.close()


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_counts() -> Iterator[None]:
    """A test run in the background of a shell ignores SIGINT, and would pass that on to what it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _as_important_as_before() -> Iterator[None]:
    """Some of Holdfast's work lets others go first, and says so to the system: what comes after that test should not."""
    yield
    if os.getpriority(os.PRIO_PROCESS, 0) != _NICENESS:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
